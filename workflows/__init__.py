"""Deterministic code only: the workflow that clients start, and the loop that any workflow can use."""
