"""Clearing: the results of older steps in a request."""
