"""The scripted model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from mulligan.activities.models.protocol import Request
from mulligan.activities.models.scripted import Scripted
from mulligan.errors import ModelRequestError
from mulligan.script import Call, Say, Script
from mulligan.values import Message, Usage, UserMessage
from mulligan.wire.agent_facts import Definition
from tests.support.provider_fixtures import GO, assistant_message


def scripted_request(model: str, messages: Sequence[Message]) -> Request:
    items = [item for message in messages for item in Scripted({}).encode(message)]
    return Request(
        model=model, definition=Definition(instructions="Be kind.", tools=[]), items=items, messages=messages
    )


async def test_a_script_says_its_turns_by_the_number_of_assistant_messages() -> None:
    turns: list[Say | Callable[[Sequence[Message]], Say]] = [
        Say("Wait.", [Call("search", {"q": "é"}), Call("search", "{nope", id="mine")]),
        Say("cut", finish_reason="length"),
        lambda messages: Say(messages[-1].text.upper()),
    ]
    provider = Scripted({"s": Script("s", turns)})
    assert provider.encode(GO) == [len(GO.text)]
    first = await provider.complete(scripted_request("s", [GO]))
    assert first == await provider.complete(scripted_request("s", [GO]))
    assert [(call.id, call.arguments) for call in first.calls] == [("call_1_1", '{"q": "é"}'), ("mine", "{nope")]
    assert (first.text, first.finish_reason) == ("Wait.", "tool_calls")
    assert first.usage == Usage(input_tokens=3, output_tokens=8)
    second = await provider.complete(scripted_request("s", [GO, assistant_message("Wait.")]))
    assert (second.text, second.finish_reason, second.calls) == ("cut", "length", [])
    for spoken_already in (2, 5):
        messages: list[Message] = [GO, *[assistant_message("x")] * spoken_already, GO]
        assert (await provider.complete(scripted_request("s", messages))).text == "GO."


async def test_the_echo_model_repeats_the_last_message() -> None:
    provider = Scripted({})
    last = UserMessage(role="user", text="Is anybody there?")
    reply = await provider.complete(scripted_request("echo", [GO, assistant_message("Gone."), last]))
    assert (reply.text, reply.finish_reason) == (last.text, "stop")
    assert (await provider.complete(scripted_request("echo", []))).text == ""


def broken(messages: Sequence[Message]) -> Say:
    raise KeyError("q")


@pytest.mark.parametrize(
    ("script", "told"),
    [
        (Script("other", []), "no script 's'; this worker has loaded: echo, other"),
        (Script("s", []), "'s' raised IndexError"),
        (Script("s", [broken]), "'s' raised KeyError: 'q'"),
        (Script("s", [lambda messages: "x"]), "answered with str"),  # type: ignore[list-item, return-value]
        (Script("s", [Say("x", finish_reason="done")]), "ends with 'done'; it must be one of stop, "),
    ],
)
async def test_a_script_that_cannot_answer_raises_model_request_error(script: Script, told: str) -> None:
    with pytest.raises(ModelRequestError, match=told):
        await Scripted({script.name: script}).complete(scripted_request("s", [GO]))
