"""Agents of other frameworks, and the programs that adopt them where these are installed."""
