"""Model calls through the batches of a provider: the requests of many runs, and their answers."""
