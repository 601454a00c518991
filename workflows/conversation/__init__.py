"""The conversation of an agent: its messages, steps and events, and how they are kept within Temporal's limits."""
