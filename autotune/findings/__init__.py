"""Rules that make findings of evidence: one file a rule, one line in :data:`RULES`."""
