"""The activity of scripts, without a run."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from temporalio.testing import ActivityEnvironment

from mulligan.activities import heartbeat
from mulligan.activities.code_mode import run_script
from mulligan.activities.services import Services
from mulligan.wire.code_mode import RunScript


class _QueryFailed(Exception):
    pass


async def test_a_slow_query_for_the_facts_of_a_script_is_no_lost_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats are sent meanwhile: a query may take longer than their timeout."""
    sent: list[Any] = []
    during_query: list[Any] = []

    async def slow_query(_request: RunScript) -> Any:
        await asyncio.sleep(0.1)
        during_query.extend(sent)
        raise _QueryFailed

    monkeypatch.setattr(heartbeat, "INTERVAL", 0.01)
    monkeypatch.setattr(run_script, "_read_page", slow_query)
    environment = ActivityEnvironment()
    environment.on_heartbeat = lambda *details: sent.append(details)
    activity = run_script.RunScriptActivity(cast(Services, None))
    with pytest.raises(_QueryFailed):
        await environment.run(activity.run_script, RunScript(conversation="c", call_id="1"))
    assert during_query
