"""Summaries of the older steps of conversations, written by models."""
