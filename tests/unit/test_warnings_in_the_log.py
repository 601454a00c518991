"""A warning in a worker with encryption is logged without its text: pydantic's warnings quote values."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from pydantic import BaseModel

from mulligan.worker.logs import show_without_text


class Amount(BaseModel):
    value: int


def test_a_warning_of_pydantic_is_logged_without_the_value(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(warnings, "showwarning", show_without_text)
    wrong: dict[str, Any] = {"value": "sesame-4711"}
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show_without_text)
        Amount.model_construct(**wrong).model_dump()
    assert "UserWarning at " in caplog.text
    assert "sesame" not in caplog.text + capsys.readouterr().err
