"""The two verdicts, "faster" and "loss unchanged": pure functions of numbers. No torch, no files,
no clock. docs/architecture.md says what each module is for.
"""
