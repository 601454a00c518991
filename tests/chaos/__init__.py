"""Kills of real processes at random moments, with a ledger of every effect outside of them: `python -m tests.chaos`."""
