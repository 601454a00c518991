"""One agent = one file."""
