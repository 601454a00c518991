"""What leaves a process as traces and metrics, and the names of all of it."""
