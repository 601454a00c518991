"""Runs of agents whose calls a person approves, and rules for later ones."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError

from tests.promise.test_people import pending
from tests.support.lab import call

MAIL = call("read_mail", '{"box": "in"}', "m1")
PAY = call("pay", '{"to": "Ada", "euros": 5}', "p1")
AGAIN = call("pay", '{"euros": 5.0, "to": "Ada"}', "p2")
THIRD = call("pay", '{"to": "Ada", "euros": 5}', "p3")
MORE = call("pay", '{"to": "Ada", "euros": 6}', "p4")


async def approve(handle: Any, **more: Any) -> dict[str, Any]:
    (asked,) = await pending(handle)
    decision = {"call_id": asked["call_id"], "decision": "approve", "by": "Ada", **more}
    answer: dict[str, Any] = await handle.execute_update("decide", decision)
    return answer


async def refused(handle: Any, **more: Any) -> str:
    with pytest.raises(WorkflowUpdateFailedError) as failure:
        await approve(handle, **more)
    return str(failure.value.cause)
