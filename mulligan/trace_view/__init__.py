"""A run's trace, looked at: its spans from Jaeger, from Temporal's history or from this process, as one tree."""
