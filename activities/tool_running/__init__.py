"""Running a tool: its thread or event loop, its context, its result."""
