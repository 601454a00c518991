"""A client of Temporal whose updates are pushed back, lose their answers, or are sent twice, at random, on a real server."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from temporalio.client import Interceptor, OutboundInterceptor, StartWorkflowUpdateInput
from temporalio.service import RPCError, RPCStatusCode

PUSHED_BACK = {
    "busy": RPCError("limit on number of concurrent in-flight updates", RPCStatusCode.RESOURCE_EXHAUSTED, b""),
    "aborted": RPCError("workflow update was aborted", RPCStatusCode.ABORTED, b""),
    "unsent": RPCError("transport error", RPCStatusCode.UNAVAILABLE, b""),
}
"""The errors that a client gets for an update that is not sent."""
LOST = RPCError("transport error", RPCStatusCode.UNAVAILABLE, b"")
"""The errors that a client gets in place of the answer to an update that the server has carried out."""


@dataclass
class UpdateFaults(Interceptor):
    """The faults that a client meets in its updates.

    `share`: how many of them, from 0 to 1. `first`: what happens to the first ones. `counts`: what has happened.
    """

    dice: random.Random
    share: float
    kinds: Sequence[str] = (*PUSHED_BACK, "lost", "twice")
    first: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - Temporal's name
        return _Faulty(next, self)


class _Faulty(OutboundInterceptor):
    def __init__(self, next: OutboundInterceptor, faults: UpdateFaults) -> None:  # noqa: A002 - Temporal's name
        super().__init__(next)
        self._faults = faults

    async def start_workflow_update(self, input: StartWorkflowUpdateInput) -> Any:  # noqa: A002 - Temporal's name
        faults = self._faults
        kind = "sent"
        if faults.first:
            kind = faults.first.pop()
        elif faults.dice.random() < faults.share:
            kind = faults.dice.choice(faults.kinds)
        faults.counts[kind] += 1
        if kind == "sent":
            return await super().start_workflow_update(input)
        if kind in PUSHED_BACK:
            raise PUSHED_BACK[kind]
        send = super().start_workflow_update
        if kind == "lost":
            await send(input)
            raise LOST
        answers: list[Any] = await asyncio.gather(send(input), send(input), return_exceptions=True)
        if isinstance(answers[0], BaseException):
            raise answers[0]
        return answers[0]
