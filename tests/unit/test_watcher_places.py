"""Places of watchers: they are taken once for a request, given back however it ends, and nobody can take them all."""

from __future__ import annotations

import contextvars
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mulligan.serve.problems import Problem
from mulligan.serve.served_request import ServedRequest, WatcherPlaces

TENANTS = st.sampled_from(["ada", "bob", "cy", None])
MOVES = st.lists(st.tuples(st.sampled_from(["begin", "end", "fail"]), TENANTS, st.integers(0, 20)), max_size=60)


class Request:
    """A request that a task of its own serves."""

    def __init__(self, tenant: str | None) -> None:
        self.tenant, self._stack, self._context = tenant, ExitStack(), contextvars.copy_context()
        self._context.run(self._stack.enter_context, ServedRequest.serving({}))

    def take(self, places: WatcherPlaces) -> None:
        self._context.run(places.take, self.tenant)

    def end(self, error: BaseException | None = None) -> None:
        self._context.run(self._stack.__exit__, type(error) if error else None, error, None)


@given(most=st.integers(1, 7), moves=MOVES)
def test_places_are_bounded_for_all_and_for_each_tenant_and_come_back(
    most: int, moves: list[tuple[str, str | None, int]]
) -> None:
    """Any sequence of requests that begin, end and fail."""
    places, share = WatcherPlaces(most), (most + 1) // 2
    watching: list[Request] = []
    for kind, tenant, which in moves:
        if kind != "begin":
            if watching:
                watching.pop(which % len(watching)).end(OSError() if kind == "fail" else None)
            continue
        request = Request(tenant)
        of_tenant = sum(each.tenant == tenant for each in watching)
        if len(watching) < most and (tenant is None or of_tenant < share):
            for _ in range(2):  # one request, one place
                request.take(places)
            watching.append(request)
            continue
        with pytest.raises(Problem, match="open streams") as refused:
            request.take(places)
        assert (refused.value.status, refused.value.code) == (503, "too_many_watchers")
        request.end()
    for request in watching:
        request.end()
    requests = [Request(None) for _ in range(most)]
    for request in requests:
        request.take(places)  # all are free again
    for request in requests:
        request.end()


def test_a_request_that_is_over_has_no_place_and_keeps_what_it_has_started() -> None:
    """The handler of unknown exceptions runs after the request was left."""
    scope: dict[str, object] = {}
    with ServedRequest.serving(scope):
        ServedRequest.current().started = "run"
    assert ServedRequest.of(scope).started == "run"
    assert ServedRequest.of({}).started is None
