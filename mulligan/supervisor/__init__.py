"""`mulligan worker --processes N`: worker processes under a supervisor, which makes a dead process a short pause."""
