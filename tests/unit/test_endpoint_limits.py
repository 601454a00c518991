"""Workers with a rate-limited endpoint, in virtual time: no bursts, every call gets through, memory is bounded."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest

from mulligan.activities.models import endpoint_limits
from mulligan.activities.models.endpoint_limits import MAX_WAITING, EndpointLimits
from tests.support.virtual_time import VirtualTimeLoop


@dataclass
class Endpoint:
    """Accepts `rate` requests a second, `burst` at once, and none before the time `opens`."""

    rate: float
    burst: int = 10
    opens: float = 0.0
    retry_after: float | None = None
    seen: list[float] = field(default_factory=list)
    tokens: float = 0.0

    async def ask(self) -> bool:
        now = asyncio.get_running_loop().time()
        if now >= self.opens:
            self.tokens = min(self.burst, self.tokens + self.rate * (now - (self.seen[-1] if self.seen else 0)))
        self.seen.append(now)
        if now < self.opens or self.tokens < 1:
            await asyncio.sleep(0.05)
            return False
        self.tokens -= 1
        await asyncio.sleep(0.2)
        return True


@dataclass
class Run:
    """One call, retried as Temporal does."""

    refused: int = 0
    sent_away: int = 0

    async def __call__(self, limits: EndpointLimits, endpoint: Endpoint, model: str = "m") -> None:
        await asyncio.sleep(random.uniform(0, 1))
        while True:
            if not await limits.wait_until_allowed(model):
                self.sent_away += 1
                delay = limits.schedule_return(model)
            else:
                sent = limits.now()
                if await endpoint.ask():
                    limits.record_success(model)
                    return
                own = min(60.0, 2.0**self.refused) if endpoint.retry_after is None else endpoint.retry_after
                self.refused += 1
                limits.record_limit(model, sent=sent, retry_after=endpoint.retry_after)
                delay = limits.schedule_return(model, own)
                assert delay >= own
            await asyncio.sleep(delay)


HOURS = 9_226.0
"""The uptime of the machine in seconds: `time.monotonic` counts from its start, not from that of the worker."""


def limits_of(loop: VirtualTimeLoop, uptime: float = HOURS) -> EndpointLimits:
    """The limits of a worker on a machine with that uptime in seconds at the start of the test."""
    return EndpointLimits(lambda: uptime + loop.time())


def in_virtual_time(make: Any) -> Any:
    """Run `make(loop)` to its end."""
    random.seed(7)
    loop = VirtualTimeLoop()
    try:
        work: Coroutine[Any, Any, Any] = make(loop)
        return loop.run_until_complete(work)
    finally:
        loop.close()


@pytest.mark.parametrize("uptime", [0.0, HOURS, 30 * 86_400.0], ids=["just started", "up for hours", "for a month"])
@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize(
    "endpoint",
    [
        lambda: Endpoint(rate=50, burst=50, opens=10, retry_after=5),
        lambda: Endpoint(rate=50, burst=50, opens=10),
        lambda: Endpoint(rate=8, retry_after=20),
        lambda: Endpoint(rate=8),
        lambda: Endpoint(rate=50, burst=50, opens=1800),
        lambda: Endpoint(rate=50, burst=200, tokens=200, retry_after=5),
    ],
    ids=[
        "away, Retry-After",
        "away",
        "500 a minute, Retry-After",
        "500 a minute",
        "away for half an hour",
        "after 200 answers",
    ],
)
def test_a_thousand_calls_to_a_limited_endpoint_need_little_more_than_a_thousand_requests(
    endpoint: Any, workers: int, uptime: float
) -> None:
    """And never many of them at once."""
    at, runs = endpoint(), [Run() for _ in range(1000)]

    async def all_of(loop: VirtualTimeLoop) -> None:
        limits = [limits_of(loop, uptime) for _ in range(workers)]
        await asyncio.gather(*(run(limits[n % workers], at) for n, run in enumerate(runs)))

    in_virtual_time(all_of)
    assert len(at.seen) < 1400
    seconds = Counter(int(when) for when in at.seen)
    assert max(count for second, count in seconds.items() if second > 1) < 2 * at.rate + 10
    assert max(run.refused for run in runs) < 12
    assert max(run.sent_away for run in runs) < 50


def test_without_endpoint_limits_requests_come_in_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that the test above can fail: calls that wait independently send many more requests."""

    async def at_once(self: EndpointLimits, model: str, longest: float = 0) -> bool:
        return True

    monkeypatch.setattr(EndpointLimits, "wait_until_allowed", at_once)
    monkeypatch.setattr(EndpointLimits, "record_limit", lambda *_, **__: None)
    monkeypatch.setattr(EndpointLimits, "schedule_return", lambda _, model, own: own * random.uniform(1, 1.25))
    at = Endpoint(rate=50, burst=50, opens=10, retry_after=5)
    in_virtual_time(lambda loop: asyncio.wait([loop.create_task(Run()(EndpointLimits(), at)) for _ in range(1000)]))
    assert len(at.seen) > 3000


def test_the_limit_of_one_model_does_not_hold_back_another(caplog: pytest.LogCaptureFixture) -> None:
    """The limit is logged once, and again when it is over."""
    caplog.set_level(logging.WARNING)
    away, here = Endpoint(rate=50, opens=100, retry_after=20), Endpoint(rate=1000, burst=1000)
    here.tokens = 1000

    async def both(loop: VirtualTimeLoop) -> float:
        limits = limits_of(loop)
        waiting = [loop.create_task(Run()(limits, away, "openai:limited")) for _ in range(20)]
        await asyncio.sleep(2)
        await asyncio.gather(*(Run()(limits, here, "openai:free") for _ in range(100)))
        done = loop.time()
        await asyncio.gather(*waiting)
        await asyncio.sleep(100)
        assert await limits.wait_until_allowed("openai:limited")
        assert limits._limits == {}
        return done

    assert in_virtual_time(both) < 4
    said = [record.getMessage() for record in caplog.records]
    assert [text.split(",")[0] for text in said] == [
        "openai:limited limits this worker",
        "openai:limited no longer limits this worker.",
    ]


@pytest.mark.parametrize("answered", [0, 50])
def test_after_the_first_429_requests_are_sent_at_half_the_previous_rate(
    answered: int, caplog: pytest.LogCaptureFixture
) -> None:
    """After the pause of `retry_after`."""
    caplog.set_level(logging.WARNING)

    async def one_by_one(loop: VirtualTimeLoop) -> list[float]:
        limits = limits_of(loop)
        for _ in range(answered):
            limits.record_success("m")  # recorded at once, but counted over the last ten seconds
        limits.record_limit("m", sent=limits.now(), retry_after=5)
        went_out = []
        for _ in range(4):
            assert await limits.wait_until_allowed("m")
            went_out.append(loop.time())
        return went_out

    first, *others = in_virtual_time(one_by_one)
    assert 5 <= first <= 5.5
    rate = max(1.0, answered / endpoint_limits.RATE_WINDOW / 2)
    assert others[0] - first == pytest.approx(1 / rate, rel=0.05)
    assert [record.getMessage().split("then ")[-1] for record in caplog.records] == [f"{rate:.1f} a second at first."]


def test_the_number_of_calls_waiting_in_a_worker_is_bounded() -> None:
    """The other calls leave the worker, and come back after about a minute at most."""

    async def crowd(loop: VirtualTimeLoop) -> None:
        limits = limits_of(loop)
        for _ in range(600):
            limits.record_success("m")  # a fast endpoint, for which many calls could wait
        limits.record_limit("m", sent=limits.now(), retry_after=0)
        asked = [loop.create_task(limits.wait_until_allowed("m")) for _ in range(1000)]
        await asyncio.sleep(0)
        assert sum(not task.done() for task in asked) <= MAX_WAITING
        away = [limits.schedule_return("m") for task in asked if task.done() and not task.result()]
        assert max(away) < endpoint_limits.MAX_WAIT + endpoint_limits.MAX_SPREAD
        for task in asked:
            task.cancel()

    in_virtual_time(crowd)


def test_a_call_that_is_always_refused_does_not_hold_back_others() -> None:
    """Such as a request that is too large by itself: it is retried rarely, and the others keep their rate."""
    at = Endpoint(rate=20, burst=20)

    async def with_one_too_large(loop: VirtualTimeLoop) -> float:
        limits = limits_of(loop)

        async def too_large() -> None:
            for refused in range(20):
                while not await limits.wait_until_allowed("m"):
                    await asyncio.sleep(limits.schedule_return("m"))
                limits.record_limit("m", sent=limits.now(), retry_after=None)
                await asyncio.sleep(limits.schedule_return("m", min(60.0, 2.0**refused)))

        poison = loop.create_task(too_large())
        await asyncio.gather(*(Run()(limits, at) for _ in range(1000)))
        poison.cancel()
        return loop.time()

    assert in_virtual_time(with_one_too_large) < 150


def test_calls_that_do_not_come_again_do_not_delay_those_that_do() -> None:
    """Calls of repairing models do not wait: a thousand of them that are refused do not delay the others."""

    async def turned_away(loop: VirtualTimeLoop) -> None:
        limits = limits_of(loop)
        limits.record_limit("m", sent=limits.now(), retry_after=20)
        for _ in range(1000):
            assert not await limits.wait_until_allowed("m", 0.0)
        # The pause is 22 s at most; then there is one request a second, and two calls come back.
        assert max(limits.schedule_return("m") for _ in range(2)) < 25

    in_virtual_time(turned_away)


def test_a_very_long_retry_after_delays_only_its_own_call() -> None:
    """Another call tries the endpoint again after about a minute."""

    async def tomorrow(loop: VirtualTimeLoop) -> None:
        limits = limits_of(loop)
        limits.record_limit("m", sent=limits.now(), retry_after=86_400)
        assert limits.schedule_return("m", 86_400) >= 86_400
        assert not await limits.wait_until_allowed("m")
        delay = limits.schedule_return("m")
        assert delay < 65
        await asyncio.sleep(delay)
        assert await limits.wait_until_allowed("m")

    in_virtual_time(tomorrow)


def test_the_number_of_remembered_models_is_bounded() -> None:
    """The input of a run may name any model."""

    async def many(loop: VirtualTimeLoop) -> None:
        limits = limits_of(loop)
        for number in range(3000):
            limits.record_success(f"m{number}")
            limits.record_limit(f"m{number}", sent=limits.now(), retry_after=None)
            await asyncio.sleep(1)
        assert len(limits._answer_rates) <= endpoint_limits.MAX_MODELS
        assert len(limits._limits) < 100

    in_virtual_time(many)
