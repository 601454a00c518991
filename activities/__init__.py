"""Every side effect: asking a model, running a tool, writing a span."""
