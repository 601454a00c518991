"""A rival."""
