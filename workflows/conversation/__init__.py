"""What an agent has said and done in a run, and how it is kept within bounds."""
