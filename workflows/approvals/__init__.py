"""Calls that wait for a person before they run: for an approval, or for the answer to the agent's question."""
