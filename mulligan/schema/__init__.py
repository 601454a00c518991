"""From Python's types to JSON schemas, and values checked against them."""
