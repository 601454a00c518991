"""How a process talks to Temporal: connecting, following a run, encryption, storage outside of histories."""
