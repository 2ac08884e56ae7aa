"""What measures for the stages: many configurations in one session, two of them compared, pairs of fresh processes."""
