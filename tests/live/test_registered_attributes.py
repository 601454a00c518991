"""What a client knows of the server's search attributes, also when a request fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client
from temporalio.service import RetryConfig, RPCError

from mulligan.client import registered_attributes
from mulligan.client.registered_attributes import RegisteredAttributes, read_registered_attributes
from mulligan.doctor.temporal_server import check_search_attributes
from mulligan.wire.search_attributes import SEARCH_ATTRIBUTES
from tests.support.lab import Lab
from tests.support.tcp_proxy import TcpProxy, tcp_proxy

ALL = frozenset(each.name for each in SEARCH_ATTRIBUTES)


@pytest.fixture
async def proxy(lab: Lab) -> AsyncIterator[TcpProxy]:
    async with tcp_proxy(lab.client.service_client.config.target_host) as proxy:
        yield proxy


async def client_through(proxy: TcpProxy, lab: Lab) -> Client:
    """A client that repeats a failed request for half a second, not for the SDK's 10 s."""
    retries = RetryConfig(max_elapsed_time_millis=500)
    return await Client.connect(proxy.address, namespace=lab.client.namespace, retry_config=retries)


async def test_a_request_on_a_connection_that_the_server_closes_is_sent_again(lab: Lab, proxy: TcpProxy) -> None:
    """A server closes each connection after five minutes, and the requests that begin at that moment are cancelled."""
    client = await Client.connect(proxy.address, namespace=lab.client.namespace)
    proxy.end_next_request()
    assert await RegisteredAttributes().names(client) == ALL
    assert proxy.requests_ended == 1


async def test_after_an_answer_a_server_that_is_away_changes_nothing(
    lab: Lab, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registered_attributes, "VALID_SECONDS", 0.0)
    client = await client_through(proxy, lab)
    registered = RegisteredAttributes()
    assert await registered.names(client) == ALL
    proxy.cut()
    with pytest.raises(RPCError):
        await read_registered_attributes(client)
    assert await registered.names(client) == ALL


async def test_a_server_that_was_away_is_asked_again_before_a_minute_is_over(
    lab: Lab, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registered_attributes, "FAILED_SECONDS", 0.0)
    client = await client_through(proxy, lab)
    registered = RegisteredAttributes()
    proxy.cut()
    assert await registered.names(client) == frozenset()
    proxy.restore()
    while await registered.names(client) != ALL:
        await asyncio.sleep(0.02)


async def test_the_doctor_does_not_ask_to_register_attributes_when_the_server_does_not_say(
    lab: Lab, proxy: TcpProxy
) -> None:
    client = await client_through(proxy, lab)
    proxy.cut()
    [finding] = await check_search_attributes(client)
    assert finding.state == "warning"
    assert "does not say" in finding.text
    assert "register them" not in finding.text
