"""Shows a run's trace as a tree, with spans from Jaeger, from Temporal's history, or from this process."""
