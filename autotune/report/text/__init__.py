"""Results in words and rows, for every way of showing them."""
