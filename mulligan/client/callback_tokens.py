"""The tokens with which deferred calls are completed over HTTP: the ids of run and call, encrypted.

Workers make them, and every replica of `mulligan serve` reads them; nobody stores them. The key is `MULLIGAN_CALLBACK_KEYS`,
or else a random key that the first process creates and keeps in the Temporal namespace: in the memo of a paused schedule,
which is created at most once, and which no retention time removes. Whoever can read it there can complete calls anyway.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleSpec,
    ScheduleState,
)
from temporalio.service import RPCError, RPCStatusCode

from mulligan.client.settings import settings
from mulligan.errors import DeclarationError
from mulligan.wire.run_context import RunContext

KEY_SCHEDULE = "mulligan-callback-key"
"""The id of the schedule whose memo has the namespace's key."""
SHORTEST_KEY, LONGEST_TOKEN = 32, 4_000
"""Characters."""
_MEMO = "key"
_NOTE = (
    "Its memo has the key of callback tokens. It starts nothing. Deleting it makes the tokens of open calls unknown."
)
_BLOCK = 64
"""Tokens have a multiple of this many bytes, so that their length says little of the ids in them."""
CALLBACK, RESPONSE = b"mulligan callback token 1", b"mulligan background response 1"
"""What a token is for: one cannot be used as the other."""


@dataclass(frozen=True)
class DeferredCallId:
    """Which call a token completes. `trace_id` tells a run from another one with the same workflow id."""

    workflow_id: str
    trace_id: str
    conversation: str
    call_id: str


class CallbackTokens:
    """Makes and reads tokens. `read_keys` returns the keys, at the first use: the first one makes tokens, all read them."""

    def __init__(self, read_keys: Callable[[], Awaitable[Sequence[bytes]]]) -> None:
        self._read_keys = read_keys
        self._ciphers: list[AESSIV] = []
        self._lock = asyncio.Lock()

    async def seal(self, call: DeferredCallId, purpose: bytes = CALLBACK) -> str:
        """The token of a call: always the same one, and unguessable without a key."""
        cipher = (await self._opened())[0]
        parts = [call.workflow_id, call.trace_id, call.conversation, call.call_id]
        text = json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(cipher.encrypt(text.ljust(-len(text) % _BLOCK + len(text)), [purpose])).decode()

    async def open(self, token: str, purpose: bytes = CALLBACK) -> DeferredCallId | None:
        """The call that a token completes; None if no key made it for this purpose."""
        if len(token) > LONGEST_TOKEN:
            return None
        try:
            sealed = base64.b64decode(token.encode(), altchars=b"-_", validate=True)
        except ValueError:
            return None
        for cipher in await self._opened():
            try:
                return DeferredCallId(*json.loads(cipher.decrypt(sealed, [purpose])))
            except (InvalidTag, ValueError):
                continue
        return None

    async def _opened(self) -> list[AESSIV]:
        async with self._lock:
            if not self._ciphers:
                self._ciphers = [AESSIV(hashlib.sha512(CALLBACK + key).digest()) for key in await self._read_keys()]
            return self._ciphers


def parse_callback_keys(text: str) -> list[bytes]:
    """The keys of `MULLIGAN_CALLBACK_KEYS`; empty if it is not set.

    Raises:
        DeclarationError: one is too short.
    """
    keys = [key.strip().encode() for key in text.split(",") if key.strip()]
    if any(len(key) < SHORTEST_KEY for key in keys):
        raise DeclarationError(
            f"MULLIGAN_CALLBACK_KEYS has a key of fewer than {SHORTEST_KEY} characters; make one with "
            "`openssl rand -hex 32`. Several are separated by commas."
        )
    return keys


def callback_tokens(client: Callable[[], Client]) -> CallbackTokens:
    """The tokens by the settings of this process. `client` is called at their first use, if no key is set."""

    async def read_keys() -> Sequence[bytes]:
        keys = parse_callback_keys(settings().callback_keys.get_secret_value())
        return keys or [await namespace_key(client())]

    return CallbackTokens(read_keys)


async def namespace_key(client: Client) -> bytes:
    """The key that the namespace keeps, created if there is none.

    Raises:
        RPCError: Temporal does not answer, or forbids it.
    """
    handle = client.get_schedule_handle(KEY_SCHEDULE)
    while True:
        try:
            return str((await (await handle.describe()).memo())[_MEMO]).encode()
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
        action = ScheduleActionStartWorkflow("AgentWorkflow", id=KEY_SCHEDULE, task_queue=KEY_SCHEDULE)
        schedule = Schedule(action=action, spec=ScheduleSpec(), state=ScheduleState(note=_NOTE, paused=True))
        try:
            await client.create_schedule(KEY_SCHEDULE, schedule, memo={_MEMO: secrets.token_hex(32)})
        except ScheduleAlreadyRunningError:
            continue  # another process was faster: its key counts


def call_of(where: RunContext, workflow_id: str, call_id: str) -> DeferredCallId:
    """The identity of a call of a run."""
    return DeferredCallId(workflow_id, where.trace.split("-")[1], where.conversation, call_id)
