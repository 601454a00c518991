"""docs/traces.md names every span and attribute, and none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

from mulligan.observe import semconv

PAGE = (Path(__file__).parent.parent.parent / "docs" / "traces.md").read_text()
NAMES = {value.rstrip(".") for name, value in vars(semconv).items() if name.isupper() and isinstance(value, str)}


def test_every_name_is_explained() -> None:
    told = {name.removesuffix(".*") for name in re.findall(r"`([^`]+)`", PAGE)}
    told |= {name.split(" ")[0] for name in told}
    assert NAMES - told == set()


def test_no_name_is_made_up() -> None:
    mentioned = set(re.findall(r"`((?:gen_ai|mulligan|temporal|ai\.toolCall)[.\w]*)(?:\.\*)?`", PAGE))
    assert {name for name in mentioned if "." in name} - NAMES - {"gen_ai", "mulligan.metadata.team"} == set()
