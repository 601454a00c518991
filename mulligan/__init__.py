"""Mulligan: agents as Temporal workflows. Each step is an activity; the model gets feedback on each of its mistakes."""

from typing import Any

import lazy_loader

_imported, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
# A name is imported at its first use: the command `mulligan` needs hardly one of them. `__init__.pyi` lists them.


def __getattr__(name: str) -> Any:
    if name != "__version__":
        return _imported(name)
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(__name__)
    except PackageNotFoundError:
        raise AttributeError("The package `mulligan` is not installed, so it has no version.") from None
