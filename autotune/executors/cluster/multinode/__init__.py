"""What only jobs over several nodes need: their sessions, and relaying messages between nodes."""
