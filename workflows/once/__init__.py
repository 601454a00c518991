"""Calls that their tool's `once` excludes: they are not executed, and the feedback to the model says why."""
