"""Every side effect of a run: model calls, tools, spans. One file for each activity."""
