"""Background responses: created at the provider, read, and ended."""
