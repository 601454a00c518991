"""Calls of sub-agents: agents that are the tools of others."""
