"""Experiments: many runs, and one table."""
