"""What temporalio does wrong, or has no public API for: a file for each workaround. No other code uses its private names."""
