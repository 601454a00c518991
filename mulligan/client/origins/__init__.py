"""How a run begins from another one: what is read of that run, what is carried, and the start under an id."""
