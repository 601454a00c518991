"""The ends of deferred calls."""
