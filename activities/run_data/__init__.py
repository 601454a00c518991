"""The data of runs that activities read: from this worker's memory, or by a query of the workflow."""
