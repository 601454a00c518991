"""Agents of other frameworks as Mulligan's: a file for each framework, and one for its private names."""
