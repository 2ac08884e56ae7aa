"""The two verdicts, "faster" and "loss unchanged": pure functions of numbers. No torch, no files,
no clock.

timing.py       from iteration times to one cost per sample: warm-up, stalls, epoch ends, disturbed windows
speedup.py      from costs to a speed-up with its interval; adopt, reject or continue measuring
runs.py         seeded runs: alignment, bins, curves, whether the loss moves at all
probe.py        checks of the first steps: gradient norm, update norm, skipped steps
loss.py         the paired loss comparison and its verdict
fingerprint.py  settings that must not differ unless a knob declares it
words.py        what was certified and what was not, in one paragraph
"""
