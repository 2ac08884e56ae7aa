"""Interprets a profiled run: operators and their roofline, the timeline, device use.

Independent of the stages: data in, records out.
"""
