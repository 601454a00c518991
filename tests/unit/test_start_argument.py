"""A run's input is sent as it is, whoever has made the client: keys keep their order, which models read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter

from mulligan.client import converter
from mulligan.client.start_run import decode_start_input, start_argument
from mulligan.values import AssistantMessage, ToolCall, ToolMessage, UserMessage
from mulligan.wire.start_input import StartInput

_CALL = ToolCall(id="c1", name="look", arguments='{"z": 1, "a": 2}')
_DATA: dict[str, Any] = {"provider": "anthropic", "model": "m", "items": [{"type": "x", "b": {"z": 1, "a": 2}}]}
RUN = StartInput(
    agent="shop",
    metadata={"z": "1", "a": "2"},
    messages=[
        UserMessage(role="user", text="Go."),
        AssistantMessage(role="assistant", tool_calls=[_CALL], provider_data=_DATA),
        ToolMessage(role="tool", call_id="c1", name="look", text="ok"),
        UserMessage(role="user", text="On."),
    ],
)


@pytest.mark.parametrize("of", [DataConverter.default, pydantic_data_converter, converter.data_converter])
async def test_the_input_of_a_run_is_the_same_bytes_with_every_client(of: DataConverter) -> None:
    client = cast(Client, SimpleNamespace(data_converter=of))
    payloads = await of.encode([start_argument(client, RUN)])
    assert payloads == await converter.data_converter.encode([RUN])
    start: Any = SimpleNamespace(input=SimpleNamespace(payloads=payloads))
    assert (await decode_start_input(client, start)).model_dump_json() == RUN.model_dump_json()
