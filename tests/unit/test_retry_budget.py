"""The delays between the attempts of a model call whose endpoint does not answer."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from mulligan.activities.heartbeat import heartbeating
from mulligan.activities.models.protocol import Unavailable
from mulligan.activities.models.retry_budget import MAX_DELAY, RetryBudget
from mulligan.errors import ModelUnavailableError
from mulligan.observe.metrics import Metrics
from mulligan.wire.model_call import ModelCall

CALL = ModelCall.model_validate(
    {"where": {"agent": "a", "trace": "t"}, "step": 1, "model": "openai:m", "definition": "d", "uncached": 1,
     "conversation": {"count": 1, "digest": "x"}, "patience": 3_600}
)  # fmt: skip


async def delay_after(failures: int, call: ModelCall = CALL) -> float:
    """The seconds until the next attempt of a call that failed so many times before."""
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, heartbeat_details=(time.time(), failures))

    async def activity() -> float:
        async with heartbeating() as heartbeat:
            error = RetryBudget(Metrics()).error_to_raise(call, Unavailable("no connection"), heartbeat)
            assert error.next_retry_delay is not None
            return error.next_retry_delay.total_seconds()

    return await environment.run(activity)


async def test_each_delay_is_half_as_long_again_as_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a growth of 2, a call waited as long again as its endpoint had been down, after it was back."""
    monkeypatch.setattr(random, "uniform", lambda *_: 1.0)
    delays = [await delay_after(failures) for failures in range(14)]
    assert delays[:4] == [1, 1.5, 2.25, 3.375]
    assert delays[11:] == [MAX_DELAY] * 3
    assert await delay_after(10_000) == MAX_DELAY


async def test_few_attempts_last_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `model_attempts`, each delay is twice the one before: five attempts outlast 15 s."""
    monkeypatch.setattr(random, "uniform", lambda *_: 1.0)
    few = CALL.model_copy(update={"attempts": 9})
    delays = [await delay_after(failures, few) for failures in range(4)]
    assert delays == [1, 2, 4, 8]


async def test_an_answer_that_fails_after_its_beginning_is_tried_three_times() -> None:
    """Each of them was paid for. Failures before a first piece do not count, and the patience is not used up."""

    async def error_after(failures: int, begun: int, *, has_begun: bool) -> ApplicationError:
        environment = ActivityEnvironment()
        environment.info = replace(environment.info, heartbeat_details=(time.time(), failures, begun))

        async def activity() -> ApplicationError:
            async with heartbeating() as heartbeat:
                error = Unavailable("it broke off")
                return RetryBudget(Metrics()).error_to_raise(CALL, error, heartbeat, has_begun=has_begun)

        return await environment.run(activity)

    for failures, begun in ((0, 0), (1, 1), (9, 1)):
        assert (await error_after(failures, begun, has_begun=True)).type == "ModelUnavailable"
    assert (await error_after(9, 2, has_begun=False)).type == "ModelUnavailable"
    third = await error_after(2, 2, has_begun=True)
    assert isinstance(third, ModelUnavailableError)
    assert "3 attempts" in str(third)
    assert "it broke off" in str(third)
