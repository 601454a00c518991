"""Model calls in batches: a run hands its request to a collector, and waits for the answer (docs/batch.md)."""
