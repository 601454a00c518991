"""Reads a run's events once, for all doors (docs/decisions/2026-11-25-one-reading-of-a-run.md)."""
