"""What people send to a run (messages, decisions, requests to stop), and the calls that wait for a decision."""
