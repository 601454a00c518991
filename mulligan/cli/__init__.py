"""The commands of `mulligan`: one file each, registered in app.py. Files with an underscore are shared by commands."""
