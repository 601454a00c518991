"""docs/traces.md names every span, attribute and metric, and none that does not exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.metrics import NoOpMeter

from mulligan.observe import semconv
from mulligan.observe.metrics import Metrics

PAGE = re.sub(r"```.*?```", "", (Path(__file__).parents[2] / "docs/traces.md").read_text(), flags=re.DOTALL)
"""Without blocks of code, whose marks would count as those of names."""
NAMES = {value.rstrip(".") for name, value in vars(semconv).items() if name.isupper() and isinstance(value, str)}


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the metrics that a worker records."""
    names: set[str] = set()

    def create(_: NoOpMeter, name: str, *__: Any, **___: Any) -> None:
        names.add(name)

    for kind in ("histogram", "counter", "up_down_counter"):
        monkeypatch.setattr(NoOpMeter, f"create_{kind}", create)
    Metrics(exports=False)
    return names


def test_the_traces_page_explains_every_name(metrics: set[str]) -> None:
    told = {name.removesuffix(".*") for name in re.findall(r"`([^`]+)`", PAGE)}
    told |= {name.split(" ")[0] for name in told}
    assert (NAMES | metrics) - told == set()


def test_the_traces_page_mentions_no_unknown_name(metrics: set[str]) -> None:
    mentioned = set(re.findall(r"`((?:gen_ai|mulligan|temporal|ai\.toolCall)[.\w]*)(?:\.\*)?`", PAGE))
    own = {"gen_ai", "mulligan.metadata.team"}
    assert {name for name in mentioned if "." in name} - NAMES - metrics - own == set()
