"""With which versions of temporalio Mulligan was tried: they are listed, and CI asks the package index for no other."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from mulligan.worker.sdk_workarounds.workaround_runner import TRIED_VERSIONS

ROOT = Path(__file__).parent.parent.parent
SCRIPT = runpy.run_path(str(ROOT / ".ci/test_sdk.py"))


@pytest.fixture(autouse=True)
def _no_uv(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")


def test_the_listed_versions_are_allowed_and_the_pinned_and_the_oldest_are_listed() -> None:
    allowed = Requirement(SCRIPT["ALLOWED"]).specifier
    assert all(version in allowed for version in TRIED_VERSIONS)
    [oldest] = [each.version for each in allowed if each.operator == ">="]
    assert {SCRIPT["PINNED"], f"{oldest}.0"} <= TRIED_VERSIONS


def test_ci_tries_the_listed_versions_but_the_pinned_one_without_the_index() -> None:
    chosen = SCRIPT["chosen_versions"]
    assert {*chosen([])} == TRIED_VERSIONS
    assert {*chosen(["--others"])} == TRIED_VERSIONS - {SCRIPT["PINNED"]}
    with pytest.raises(FileNotFoundError, match="uv"):
        chosen(["--newest"])


def test_ci_names_the_option() -> None:
    stages = runpy.run_path(str(ROOT / ".ci/stages.py"))["SIDE_BY_SIDE"]
    assert [stage for queue in stages for stage in queue if "sdk" in stage] == ["test-sdk ARGS=--others"]
