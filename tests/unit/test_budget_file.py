"""The operator's file with the budgets of tenants: what it may contain, and that a change of it applies."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mulligan.client.budget_file import MAX_FILE_BYTES, BudgetFile
from mulligan.errors import DeclarationError

GOOD = '[usd_per_day]\nacme = 20\n"*" = 5.5\n'


def test_a_tenant_has_its_own_budget_or_that_of_the_others(tmp_path: Path) -> None:
    path = tmp_path / "budgets.toml"
    path.write_text(GOOD)
    budgets = BudgetFile(str(path)).read()
    assert (budgets.of("acme"), budgets.of("other"), budgets.of(None)) == (20, 5.5, None)
    assert budgets.over_budget == "wait"
    assert BudgetFile("").read().of("acme") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("usd_per_day = 5", "'usd_per_day' is invalid"),
        ("[usd_per_day]\nacme = -1", "'usd_per_day.acme' is invalid"),
        ("[usd_per_day]\nacme = inf", "'usd_per_day.acme' is invalid"),
        ('over_budget = "explode"', "'over_budget' is invalid"),
        ("[tenants]\nacme = 5", "'tenants' is invalid"),
        ("acme = ", "is not TOML"),
        ("\x00", "is not TOML"),
        ("#" * (MAX_FILE_BYTES + 1), "which has more than"),
    ],
)
def test_a_fault_is_one_sentence_with_the_field(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "budgets.toml"
    path.write_text(text)
    with pytest.raises(DeclarationError, match=says) as raised:
        BudgetFile(str(path))
    assert "\n" not in str(raised.value)
    assert "MULLIGAN_BUDGETS" in str(raised.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(DeclarationError, match="which cannot be read: No such file"):
        BudgetFile("/nowhere/budgets.toml")


def test_a_change_applies_unless_it_is_at_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "budgets.toml"
    path.write_text(GOOD)
    file = BudgetFile(str(path))

    def write(text: str, at: int) -> None:
        path.write_text(text)
        os.utime(path, (at, at))

    write("[usd_per_day]\nacme = 30\n", 1_000)
    assert file.read().of("acme") == 30
    write("[usd_per_day]\nacme = ", 2_000)
    assert file.read().of("acme") == 30
    assert "The budgets before the change apply" in caplog.text
    path.unlink()
    assert file.read().of("acme") == 30
    write("[usd_per_day]\nacme = 40\n", 3_000)
    assert file.read().of("acme") == 40
