"""Which of Mulligan's search attributes a server has: a run that sets another one would not get on."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError

from mulligan.wire.search_attributes import SEARCH_ATTRIBUTES

REQUEST_TIMEOUT = timedelta(seconds=2)
VALID_SECONDS = 60.0
"""For how long an answer is used: attributes that are created while a worker runs are found after that time."""
FAILED_SECONDS = 5.0
"""For how long a server that did not answer is not asked again."""


class RegisteredAttributes:
    """The search attributes that the client's namespace has, with the right type. The answer is kept for a while."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._names: frozenset[str] = frozenset()
        self._valid_until = 0.0

    async def names(self, client: Client) -> frozenset[str]:
        """The registered names. If the server does not say, for example as it does not allow the question: the last
        answer, and none if there is no such answer.
        """
        loop = asyncio.get_running_loop()
        async with self._lock:
            if loop.time() >= self._valid_until:
                try:
                    self._names = await read_registered_attributes(client)
                except RPCError:
                    self._valid_until = loop.time() + FAILED_SECONDS
                else:
                    self._valid_until = loop.time() + VALID_SECONDS
            return self._names


async def read_registered_attributes(client: Client) -> frozenset[str]:
    """Ask the server.

    Raises:
        RPCError: it does not answer, or does not allow the question.
    """
    request = ListSearchAttributesRequest(namespace=client.namespace)
    # Retried: a server closes each connection after minutes, and ends the requests that begin at that moment.
    answer = await client.operator_service.list_search_attributes(request, retry=True, timeout=REQUEST_TIMEOUT)
    keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
    names = [each.name for each in SEARCH_ATTRIBUTES]
    return frozenset(name for name in names if answer.custom_attributes.get(name) == keyword)
