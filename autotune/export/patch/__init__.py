"""A patch of the user's own source: the tuned settings written at the places the agent saw.

Source files are parsed into concrete syntax trees (libcst), so that formatting and comments stay,
and changed at exactly the calls recorded in tuned.yaml (:mod:`autotune_spaces.sites`). One module a
transformation; :mod:`.plan` puts them together.
"""
