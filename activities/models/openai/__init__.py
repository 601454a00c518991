"""OpenAI: the Responses API, and Chat Completions, which many servers speak."""
