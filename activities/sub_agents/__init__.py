"""The spans and results of sub-agents' calls."""
