"""Ended runs without a worker: what a worker would answer, read from the run's history."""
