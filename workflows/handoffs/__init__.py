"""Handoffs: another agent takes the conversation of a run over."""
