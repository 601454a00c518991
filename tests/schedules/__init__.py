"""Every order of events of a run, without a server: `python -m tests.schedules`."""
