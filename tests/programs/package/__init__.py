"""A package that is run as a module."""
