"""Results as text and table rows, shared by terminal and page."""
