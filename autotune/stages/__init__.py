"""The tool, stage by stage: observe, search, confirm, converge, explain. Read these five files and
know it.
"""
