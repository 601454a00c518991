"""Features of the modules that `MULLIGAN_LOAD` names: commands and doors go on without what cannot be imported."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mulligan import features

Load = Callable[..., list[str]]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[Load]:
    """Write modules, by their names, and return the names of the features that they have."""
    monkeypatch.chdir(tmp_path)
    known, path = set(sys.modules), [*sys.path]
    caplog.set_level(logging.WARNING)

    def loaded(**modules: str) -> list[str]:
        for name, text in modules.items():
            Path(f"{name}.py").write_text(f"from mulligan.feature import FeatureParts\n{text}\n")
        monkeypatch.setenv(features.LOAD, ", ".join(f"./{name}.py" for name in modules))
        return [each.name for each in features.loaded_parts()]

    features._parts_in.cache_clear()
    yield loaded
    features._parts_in.cache_clear()
    sys.path[:] = path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_parts_are_found_in_a_module_and_in_a_class_of_it(load: Load) -> None:
    of_class = "from mulligan import AgentFeature\nclass Slots(AgentFeature):\n    parts = FeatureParts('slots')"
    assert load(mod_a="PARTS = FeatureParts('quiet')", mod_b=of_class) == ["quiet", "slots"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import sys\nsys.exit('bye')", "SystemExit: bye"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import nowhere_at_all", "No module named 'nowhere_at_all'"),
        ("def", "SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_with_the_reason(
    load: Load, caplog: pytest.LogCaptureFixture, text: str, reason: str
) -> None:
    assert load(mod_c=text, mod_d="PARTS = FeatureParts('quiet')") == ["quiet"]
    [line] = caplog.messages
    assert line.startswith("The module ./mod_c.py of MULLIGAN_LOAD cannot be imported: ")
    assert reason in line


def test_a_feature_with_a_name_that_is_there_already_is_not_used(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    twice = "PARTS = FeatureParts('quiet', commands=())"
    assert load(mod_e="PARTS = FeatureParts('quiet')", mod_f=twice, mod_g="PARTS = FeatureParts('once')") == ["quiet"]
    assert caplog.messages == [
        "There is a feature quiet already, so that of ./mod_f.py is not used.",
        "There is a feature once already, so that of ./mod_g.py is not used.",
    ]


@pytest.mark.parametrize(
    "kind", ["commands", "paths", "pages", "request", "text_calls", "goes_on", "spending", "words"]
)
def test_a_part_that_cannot_be_imported_is_left_out(load: Load, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    load(mod_h=f"PARTS = FeatureParts('quiet', {kind}='nowhere_at_all:X')\nOTHER = FeatureParts('loud', {kind}=('x',))")
    found = features.installed(kind)
    assert "quiet" not in found
    assert found["loud"] == ("x",)
    [line] = caplog.messages
    assert line.startswith(f"The {kind} of the feature quiet cannot be imported: ModuleNotFoundError")
