"""Mulligan: agents as Temporal workflows. Each step is an activity; the model gets feedback on each of its mistakes."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
# A name is imported at its first use: the command `mulligan` needs hardly one of them. `__init__.pyi` lists them.
