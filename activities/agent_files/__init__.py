"""Agents that are files: read, checked, built of what loaded modules declare, and their versions."""
