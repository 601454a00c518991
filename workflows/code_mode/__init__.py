"""Code mode: scripts of the model, whose calls are calls of tools."""
