"""What people say to a run: updates, and the calls that wait for them."""
