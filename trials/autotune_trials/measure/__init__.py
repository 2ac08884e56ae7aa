"""Measuring inside the user's process: phases, memory, machine load, profiler. torch is handed in,
never imported.
"""
