"""The rivals' workers for the exam. Each runs in its environment of benchmarks/rivals."""
