"""The commands of experiments."""
