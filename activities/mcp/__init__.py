"""MCP servers: the worker keeps a session with each, and calls their tools like any other tool."""
