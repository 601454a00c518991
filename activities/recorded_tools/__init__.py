"""The recorded results of calls of earlier runs."""
