"""What a run hands back, and the forms it can take."""
