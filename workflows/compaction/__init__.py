"""Compaction: the older steps of a conversation are replaced by a summary."""
