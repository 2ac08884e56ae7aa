"""Patches the user's own source: writes the tuned settings at the places the agent saw.

Source files are parsed into concrete syntax trees (libcst), which keeps formatting and comments,
and changed only at the calls recorded in tuned.yaml (:mod:`autotune_spaces.sites`). Each
transformation has its own module; :mod:`.plan` combines them.
"""
