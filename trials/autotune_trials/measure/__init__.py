"""Measurements inside the user's process: phases, memory, machine load, profiler. torch is passed
in, never imported.
"""
