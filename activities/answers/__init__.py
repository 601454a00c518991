"""From a model's answer to calls that can run: parse, repair, validate, and feedback for what is wrong."""
