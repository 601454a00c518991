"""Scripts of models: the interpreter, and the activity that runs a part of a script."""
