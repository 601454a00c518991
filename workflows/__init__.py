"""Deterministic code only: the loop, and the door that clients start."""
