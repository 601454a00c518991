"""Handoffs: the facts of the agent that takes a conversation over."""
