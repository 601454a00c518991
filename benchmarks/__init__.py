"""Mulligan measured beside its rivals: `make bench`. docs/benchmarks.md is printed from what is in results/."""
