"""Starts one run for a request, however often it is sent (docs/serving.md).

A request is recognized by its `Idempotency-Key`, or as the repeated request of an SDK, which counts its attempts and sends
the same body again. No server keeps anything for that: it follows from the ids of the runs, of which Temporal starts each
once.

- The id for a key is a digest of the tenant (of a customer: and the user), the path and the key. The memo of the run has a
  digest of the body.
- The id for an SDK's request is a digest of tenant, user, path, body, the ten minutes of the clock in which it is started,
  and a number, as equal requests are different runs. A first attempt takes the next free number; a repeated request takes
  the newest run of the last ten minutes, or starts the next number. So a first attempt that is still in flight and its
  repeated request compete for one number, and Temporal decides. If the first attempt finds a run that a repeated request
  has started meanwhile, it uses that one.
- Any other request is a new run. If it is not known whether the run was started, no status says that it may be repeated.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from mulligan.client.find_runs import memo_of
from mulligan.client.start_run import StartUnknownError, begin_run
from mulligan.client.store_content import store_content
from mulligan.client.unless_missing import unless_missing
from mulligan.run_input import RunInput
from mulligan.serve.caller import Caller
from mulligan.serve.problems import Problem

KEY_HEADER = "Idempotency-Key"
MOST_KEY_CHARS = 1_000
KEYED: dict[str, Any] = {
    "parameters": [
        {
            "name": KEY_HEADER,
            "in": "header",
            "description": "The same request with the same key is carried out once.",
            "schema": {"type": "string", "minLength": 1, "maxLength": MOST_KEY_CHARS},
        }
    ]
}
"""The `openapi_extra` of a route that reads it."""
RETRY_HEADER = "x-stainless-retry-count"
"""What OpenAI's SDKs send: 0 with the first attempt of a request, 1 with the second."""
RETRY_SECONDS = 600
MOST_KNOWN = 10_000
"""Bodies of requests of which the newest number is remembered."""
KEYED_PREFIX = "keyed-"
REQUEST_MEMO = "request"
"""The key in a run's memo of {`body`: the digest of the request's body, `attempt`: of the SDK; 0 for others}."""


@dataclass(frozen=True)
class StartRequest:
    """A request that starts a run. `keyed_id`: the run's id, made from its key; `attempt`: of an SDK; None: it has none.

    `prefix`: of the ids of runs. `scope`: whose request it is, and the path. `body`: a digest of it, if it is needed.
    """

    prefix: str
    scope: tuple[str | None, ...] = ()
    body: str = ""
    keyed_id: str | None = None
    attempt: int | None = None
    received: float = field(default_factory=time.time)

    @classmethod
    def read(cls, request: Request, caller: Caller, prefix: str, body: Any) -> StartRequest:
        """What identifies a request. `body`: its JSON.

        Raises:
            Problem: the key is invalid.
        """
        scope = caller.tenant, caller.user, *caller.scope, request.url.path
        keyed_id, count = read_key(request, caller, prefix), request.headers.get(RETRY_HEADER, "")
        attempt = int(count) if count.isascii() and count.isdigit() and len(count) < 10 else None
        is_repeatable = keyed_id is not None or attempt is not None
        return cls(prefix, scope, _digest(body) if is_repeatable else "", keyed_id, attempt)

    @classmethod
    def of_form(cls, caller: Caller, form: str, run_input: Mapping[str, Any]) -> StartRequest:
        """A form of a page that was sent with this input. `form`: its id, another one each time the page is shown."""
        prefix, body = f"{run_input['agent'][:80]}-", _digest(run_input)
        return cls(prefix, body=body, keyed_id=_made_id(prefix, "form", caller.tenant, form, body))

    @property
    def is_repeatable(self) -> bool:
        """Whether the same request again would be recognized."""
        return self.keyed_id is not None or self.attempt is not None

    @property
    def is_retry(self) -> bool:
        """Whether an SDK sends it again."""
        return (self.attempt or 0) > 0

    @property
    def memo(self) -> dict[str, Any]:
        """What the memo of the run says of the request."""
        return {REQUEST_MEMO: {"body": self.body, "attempt": self.attempt or 0}} if self.is_repeatable else {}

    def numbered(self, window: int, number: int) -> str:
        """The id of a run that an equal request starts in a window of ten minutes."""
        return _made_id(self.prefix, "body", *self.scope, self.body, window, number)


def read_key(request: Request, caller: Caller, prefix: str) -> str | None:
    """The run's id for the `Idempotency-Key` of a request; None: it has no such header.

    Raises:
        Problem: the key is empty or too long.
    """
    key = _key_of(request)
    return None if key is None else _made_id(prefix, "key", *caller.scope, request.url.path, key)


def read_update_id(request: Request, caller: Caller | None, fields: Any) -> str | None:
    """The id of the update for the `Idempotency-Key` of a request; None: it has no such header.

    `fields`: those of the update, as JSON. With other fields, the same key is another update.

    Raises:
        Problem: the key is empty or too long.
    """
    key = _key_of(request)
    scope = caller.scope if caller else (None,)
    return None if key is None else _made_id("", "update", *scope, request.url.path, key, _digest(fields))


def _key_of(request: Request) -> str | None:
    key = request.headers.get(KEY_HEADER)
    if key is None:
        return None
    if not key.strip() or len(key) > MOST_KEY_CHARS:
        raise Problem(
            422, "invalid_input", f'"{KEY_HEADER}" has {len(key):,} characters; it must have 1 to {MOST_KEY_CHARS:,}, '
            "not only spaces.",
        )  # fmt: skip
    return key


def key_reused(run_id: str) -> Problem:
    """The problem of a request whose key was sent before with another body, which has started a run."""
    return Problem(
        422, "key_reused", f"The {KEY_HEADER} was sent before, with another body: it started the run {run_id!r}. "
        "Send another key for another request.",
    )  # fmt: skip


def start_unknown(run_id: str, recognized: str) -> Problem:
    """The problem of a start that Temporal has not answered. `recognized`: which requests can be sent again."""
    return Problem(
        422, "start_unknown", f"Temporal has stopped answering, so that the run {run_id!r} may or may not have been "
        f"started. Look for it (GET /api/runs/{run_id}) before you send this again; {recognized} can be sent again.",
    )  # fmt: skip


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:32]


def _made_id(prefix: str, *parts: Any) -> str:
    return f"{prefix}{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]}"


@dataclass
class _Equal:
    """What this process knows of the equal requests of one window: it saves time, and decides nothing."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a first attempt is started: they would all try the same number."""
    newest: int = -1
    """The newest number that has a run."""


class Starts:
    """Starts runs under ids of the server's own."""

    def __init__(self, client: Client, task_queue: str) -> None:
        self._client, self._task_queue = client, task_queue
        self._equal: dict[str, _Equal] = {}
        """By the id with the number 0."""

    async def start(self, run_input: RunInput, request: StartRequest) -> tuple[str, bool]:
        """Start a run, or find the run that an equal request has started.

        Returns:
            The run's id, and whether this request has started it.

        Raises:
            Problem: the key was sent with another body; or nobody knows whether the run was started.
            InvalidRunInputError: the input is too large, or its content cannot be stored.
            RPCError: Temporal does not answer. The request may be repeated.
        """
        run_input = await store_content(run_input, check_messages=run_input.tenant is not None)
        if request.keyed_id is not None:
            return await self._start_by_key(run_input, request, request.keyed_id)
        if request.attempt is None:
            run_id = f"{request.prefix}{secrets.token_hex(16)}"
            await self._describe(run_id)  # nothing is started while Temporal is away: then this may be repeated
            return run_id, await self._begin(run_input, request, run_id)
        return await (self._start_again if request.attempt else self._start_first)(run_input, request)

    async def _start_by_key(self, run_input: RunInput, request: StartRequest, run_id: str) -> tuple[str, bool]:
        try:
            return run_id, await self._begin(run_input, request, run_id)
        except WorkflowAlreadyStartedError:
            existing = await self._describe(run_id)
        if existing is None or (await _request_of(existing)).get("body") != request.body:
            raise key_reused(run_id)
        return run_id, False

    async def _start_first(self, run_input: RunInput, request: StartRequest) -> tuple[str, bool]:
        window = _window()
        equal = self._equal_to(request, window)
        async with equal.lock:
            while True:
                run_id = request.numbered(window, equal.newest + 1)
                try:
                    await self._begin(run_input, request, run_id)
                except WorkflowAlreadyStartedError:
                    equal.newest = await self._last(request, window, equal.newest + 1)
                    for each in (run_id, request.numbered(window, equal.newest)):
                        if await self._was_repeated(each, request):
                            return each, False
                    continue
                equal.newest += 1
                return run_id, True

    async def _was_repeated(self, run_id: str, request: StartRequest) -> bool:
        """Whether a repeated request has started the run since this first attempt has come."""
        existing = await self._describe(run_id)
        if existing is None or existing.start_time.timestamp() < request.received:
            return False
        return bool((await _request_of(existing)).get("attempt"))

    async def _start_again(self, run_input: RunInput, request: StartRequest) -> tuple[str, bool]:
        now = _window()
        # The window before has the last ten minutes too; the next one is there if the clock of another server is ahead.
        last = {window: await self._last(request, window) for window in (now - 1, now + 1, now)}
        described = [await self._describe(request.numbered(*each)) for each in last.items() if each[1] >= 0]
        runs = [each for each in described if each is not None]
        newest = max(runs, key=lambda each: each.start_time, default=None)
        if newest is not None and newest.start_time.timestamp() > time.time() - RETRY_SECONDS:
            return newest.id, False
        # Where a first attempt is in flight in this process, it tries the number after the last one of its window.
        equal = {window: self._equal.get(request.numbered(window, 0)) for window in last}
        window = next((window for window, each in equal.items() if each is not None and each.lock.locked()), now)
        run_id = request.numbered(window, last[window] + 1)
        try:
            return run_id, await self._begin(run_input, request, run_id)
        except WorkflowAlreadyStartedError:
            return run_id, False

    async def _begin(self, run_input: RunInput, request: StartRequest, run_id: str) -> bool:
        """Start a run under an id, and return True.

        Raises:
            WorkflowAlreadyStartedError: there is a run with this id.
        """
        try:
            await begin_run(self._client, run_input, run_id, self._task_queue, memo=request.memo)
        except StartUnknownError:
            if request.is_repeatable:
                raise
            with suppress(RPCError):
                if await self._describe(run_id) is not None:
                    return True
            raise start_unknown(run_id, f"a request with the header {KEY_HEADER}") from None
        return True

    async def _last(self, request: StartRequest, window: int, known: int = -1) -> int:
        """The newest number that has a run; -1: there is none. `known`: a number that has one. There are no gaps."""
        step = 1
        while await self._describe(request.numbered(window, known + step)) is not None:
            known, step = known + step, step * 2
        missing = known + step
        while missing - known > 1:
            middle = (known + missing) // 2
            if await self._describe(request.numbered(window, middle)) is not None:
                known = middle
            else:
                missing = middle
        return known

    async def _describe(self, run_id: str) -> WorkflowExecutionDescription | None:
        return await unless_missing(self._client.get_workflow_handle(run_id).describe())

    def _equal_to(self, request: StartRequest, window: int) -> _Equal:
        first = request.numbered(window, 0)
        equal = self._equal[first] = self._equal.pop(first, _Equal())  # the newest is the last to be forgotten
        while len(self._equal) > MOST_KNOWN:
            del self._equal[next(iter(self._equal))]
        return equal


def _window() -> int:
    return int(time.time() // RETRY_SECONDS)


async def _request_of(described: WorkflowExecutionDescription) -> dict[str, Any]:
    """What a run's memo says of the request that has started it."""
    request = (await memo_of(described)).get(REQUEST_MEMO)
    return request if isinstance(request, dict) else {}
