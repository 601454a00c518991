"""How often an activity has lost its worker, by what its earlier starts have left."""

from __future__ import annotations

from dataclasses import replace

import pytest
from temporalio import activity
from temporalio.testing import ActivityEnvironment

from mulligan.activities import heartbeat
from mulligan.activities.heartbeat import count_ended_start, heartbeating, lost_starts


async def _nothing() -> None:
    """No server is told here which worker was lost."""


class _Outage(Exception):
    pass


@pytest.mark.parametrize("fates", ["", "l", "ll", "lll", "e", "ee", "el", "le", "lel", "elell", "eeelll"])
async def test_starts_that_end_with_an_error_are_not_lost(fates: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fates`: of the starts: lost with its worker, or ended by an error."""
    monkeypatch.setattr(heartbeat, "_forget_lost_worker", _nothing)
    details: tuple[object, ...] = ()
    for attempt, fate in enumerate([*fates, ""], 1):
        environment, sent = ActivityEnvironment(), [details]
        environment.on_heartbeat = lambda *each, sent=sent: sent.append(each)
        environment.info = replace(environment.info, attempt=attempt, heartbeat_details=list(details))

        @activity.defn
        async def start(fate: str) -> int:
            async with heartbeating() as beat:
                lost = lost_starts(beat)
                if fate == "e":
                    count_ended_start(beat)
                    raise _Outage
                return lost

        if fate == "e":
            with pytest.raises(_Outage):
                await environment.run(start, fate)
        else:
            assert await environment.run(start, fate) == fates[: attempt - 1].count("l")
        details = sent[-1]
