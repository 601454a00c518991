"""Serving agents: what is loaded, how it is wired together, and how it is watched."""
