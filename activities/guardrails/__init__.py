"""Guardrails: the activities that call the functions of users."""
