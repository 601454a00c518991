"""The undo of a run that has ended: a workflow of its own, with an activity for each call."""
