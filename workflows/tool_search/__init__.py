"""Tool search: which tools a model has found, and the calls of `find_tools`."""
