"""Experiments: their start, and what a client reads of them."""
