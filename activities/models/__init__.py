"""Model calls: one file per provider (`protocol.py` says what it implements), rate limits, retries, live text."""
