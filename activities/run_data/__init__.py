"""What an activity needs to know of its run: from this worker's memory, or by a query of the workflow."""
