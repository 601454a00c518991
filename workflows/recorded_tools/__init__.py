"""Results that calls of a fork get from the run it was forked from."""
