"""What the model saw: the request of a step as it was sent, put together again from the run's history."""
