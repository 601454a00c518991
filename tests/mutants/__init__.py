"""Seeded one-line faults in the core, and which tests notice them: `make mutants`."""
