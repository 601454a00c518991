"""The checks of `mulligan doctor`: is everything there that a run needs?"""
