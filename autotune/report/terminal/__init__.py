"""Progress and results in the terminal."""
