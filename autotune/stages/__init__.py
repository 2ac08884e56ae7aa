"""The stages: observe.py, search.py, confirm.py, converge.py, explain.py, and their helpers."""
