"""What an experiment does for each row: it begins a run, compares it, and has it scored."""
