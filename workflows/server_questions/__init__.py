"""The questions that MCP servers ask people in the middle of a call."""
