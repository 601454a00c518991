"""Guardrails: what is checked before the first model call of a turn, and of its final answer."""
