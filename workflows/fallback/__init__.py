"""Fallback: where the turn's model refuses or is unavailable, the agent's other models are called."""
