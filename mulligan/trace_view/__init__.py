"""Shows a run's trace as a tree, with spans from Jaeger, from the reading of the run, or from this process."""
