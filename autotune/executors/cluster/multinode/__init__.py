"""What only jobs over several nodes need: their sessions, and the way between the nodes."""
