"""Agents and workflows to begin from: each file runs without a key. A worker serves one by `--load`."""
