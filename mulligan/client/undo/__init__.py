"""Undoes runs, and says what is undone to whoever goes on from them."""
