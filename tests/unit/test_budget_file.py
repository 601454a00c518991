"""The operator's file with the budgets of tenants: what it may contain, and that a change of it applies; how it is asked."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from mulligan.activities.budgets import tenant_budgets
from mulligan.activities.budgets.tenant_budgets import TenantBudgets
from mulligan.cli.budgets import _usd
from mulligan.client.budget_file import BudgetFile
from mulligan.client.operator_file import MAX_FILE_BYTES
from mulligan.errors import DeclarationError
from mulligan.prices import Prices
from mulligan.wire.budgets import Spent
from mulligan.wire.run_context import RunContext

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
    assert "What it had before the change applies" in caplog.text
    path.unlink()
    assert file.read().of("acme") == 30
    write("[usd_per_day]\nacme = 40\n", 3_000)
    assert file.read().of("acme") == 40


async def test_a_question_that_takes_long_sends_heartbeats(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without them, Temporal would begin another attempt, and both would call the model. The details are kept."""
    file, beats = tmp_path / "budgets.toml", list[tuple[Any, ...]]()
    file.write_text("[usd_per_day]\nacme = 1\n")

    async def slow(tenant: str) -> Spent:
        await asyncio.sleep(0.1)
        return Spent(day=date(2026, 11, 23))

    monkeypatch.setattr(tenant_budgets, "INTERVAL", 0.01)
    monkeypatch.setattr(tenant_budgets, "_spent_today", slow)
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, heartbeat_details=["kept"])
    environment.on_heartbeat = lambda *details: beats.append(details)
    budgets = TenantBudgets(str(file), Prices.load(""), None)
    run = RunContext(agent="a", trace="t", tenant="acme")
    await environment.run(budgets.check, run)
    assert set(beats) == {("kept",)}


@pytest.mark.parametrize(
    ("amount", "text"), [(0.0, "0.00"), (0.000059, "0.000059"), (0.01, "0.01"), (1234.5, "1,234.50")]
)
def test_a_small_amount_is_not_shown_as_nothing(amount: float, text: str) -> None:
    assert _usd(amount) == text
