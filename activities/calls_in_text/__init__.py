"""Calls that a model writes in its text."""
