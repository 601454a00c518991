"""Model calls: a folder per maker (`protocol.py` says what it implements), rate limits, retries, live text."""
