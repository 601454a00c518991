"""Servers of the Model Context Protocol: kept by the worker, their tools called as any tool is."""
