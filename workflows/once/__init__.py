"""Calls that their tool's `once` excludes: they are not executed, and the model is told why."""
