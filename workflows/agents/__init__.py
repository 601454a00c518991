"""The shipped agents, one in each file."""
