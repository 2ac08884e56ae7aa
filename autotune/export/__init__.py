"""The output of a run (tuned.yaml) and the formats it can be exported to."""
