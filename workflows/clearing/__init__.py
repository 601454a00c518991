"""Clearing: requests leave out the results of older steps."""
