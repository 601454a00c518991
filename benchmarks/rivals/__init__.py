"""Each rival: its environment (pyproject.toml) and its worker (worker.py), which runs in that environment only."""
