"""What a profiled run means: operators and their roofline, the timeline, device use. Pure of
stages: data in, records out.
"""
