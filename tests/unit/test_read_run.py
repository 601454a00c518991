"""Queries of runs from outside."""

from __future__ import annotations

from typing import Any, cast

import pytest
from temporalio.client import WorkflowHandle, WorkflowQueryFailedError

from mulligan.client.read_run import PROCESS_DIED, query_run

PAGE: dict[str, Any] = {"steps": [], "next": None, "total": 0}


class Refusing:
    """A run whose first answer is a refusal."""

    def __init__(self, refusal: str) -> None:
        self._refusals = [refusal]

    async def query(self, name: str, **_: Any) -> dict[str, Any]:
        if self._refusals:
            raise WorkflowQueryFailedError(self._refusals.pop())
        return PAGE


async def test_a_query_that_waited_for_a_dead_process_is_sent_again() -> None:
    run = cast("WorkflowHandle[Any, Any]", Refusing(f"{PROCESS_DIED} (killed by SIGKILL)."))
    assert await query_run(run, "steps") == PAGE
    with pytest.raises(WorkflowQueryFailedError):
        await query_run(cast("WorkflowHandle[Any, Any]", Refusing("There is no conversation '7'.")), "steps")
