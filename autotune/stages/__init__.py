"""The tool, stage by stage: observe.py, search.py, confirm.py, converge.py, explain.py; the other
files serve them.
"""
