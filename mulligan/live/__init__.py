"""The live channel: words go from workers to whoever watches their runs, beside Temporal. It is only faster."""
