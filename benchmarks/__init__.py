"""Benchmarks of Mulligan and its rivals: `make bench`. docs/benchmarks.md is printed from the data in results/."""
