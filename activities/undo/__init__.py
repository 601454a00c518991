"""The activities that undo the calls of a run."""
