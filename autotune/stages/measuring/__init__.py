"""Measurement for the stages: many configurations in one session, two of them, fresh pairs."""
