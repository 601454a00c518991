"""Workflows to begin from: each is one file that runs without a key. A worker serves one by `--load`."""
