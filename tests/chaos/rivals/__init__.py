"""The rivals' workers for `python -m tests.chaos.compare`. Each runs in its environment of benchmarks/rivals."""
