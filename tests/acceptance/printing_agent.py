"""A module whose import prints and warns, as libraries do, with texts of others."""

from __future__ import annotations

import sys
import warnings

from tests.acceptance.hostile_agent import HOSTILE, hostile

print(HOSTILE)
print(HOSTILE, file=sys.stderr)
warnings.warn(HOSTILE, stacklevel=1)

__all__ = ["hostile"]
