"""The scripts that wait in a worker's memory."""

from __future__ import annotations

from typing import cast

from mulligan.activities.code_mode.open_scripts import KEPT, KEPT_BYTES, OpenScripts
from mulligan.activities.code_mode.script_session import ScriptSession
from mulligan.wire.code_mode import ScriptFacts

FACTS = cast(ScriptFacts, None)


def kept(scripts: OpenScripts, count: int) -> list[int]:
    return [n for n in range(count) if scripts.take((str(n),), 0, 0) is not None]


async def test_those_that_wait_for_the_longest_time_leave_first() -> None:
    scripts = OpenScripts()
    for n in range(KEPT + 3):
        scripts.keep((str(n),), ScriptSession(), FACTS)
    assert kept(scripts, KEPT + 3) == [*range(3, KEPT + 3)]


async def test_all_that_wait_together_hold_a_bounded_amount_of_memory() -> None:
    scripts = OpenScripts()
    for n in range(8):
        scripts.keep((str(n),), ScriptSession(memory=KEPT_BYTES // 4), FACTS)
    assert kept(scripts, 8) == [4, 5, 6, 7]
