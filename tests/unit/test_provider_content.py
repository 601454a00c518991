"""Images, files and audio in the requests of the OpenAI providers. The scripted server refuses what OpenAI refuses."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from mulligan import Audio, File, Image, Text, ToolMessage, UserMessage
from mulligan.activities.models.fit_content import fit_content
from mulligan.activities.models.scripted import Scripted
from mulligan.content import Part
from mulligan.errors import ModelRequestError
from mulligan.values import Message
from mulligan.wire.agent_facts import ToolDefinition
from tests.support.content_files import PDF, WAV, png
from tests.support.openai_server import Failure, Script, Turn
from tests.support.provider_fixtures import APIS, GO, Bench, assistant_message, tool_call

PNG = Image.from_bytes(png(), name="a.png")
PNG_URL = f"data:image/png;base64,{base64.b64encode(png()).decode()}"
REMOTE = Image(url="https://x.test/b.jpg")
DOCUMENT = File.from_bytes(PDF, name="a.pdf")
SOUND = Audio.from_bytes(WAV)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    async with Bench.open(monkeypatch) as bench:
        yield bench


def user(*parts: Part) -> UserMessage:
    return UserMessage(role="user", content=list(parts))


def tool_result(call_id: str, *parts: Part) -> ToolMessage:
    return ToolMessage(role="tool", call_id=call_id, name="look", content=list(parts))


def items(bench: Bench) -> list[dict[str, Any]]:
    sent = bench.sent
    return list(sent.get("input") or sent["messages"][1:])


@pytest.mark.parametrize("api", APIS)
async def test_an_image_by_bytes_and_by_url_and_a_pdf_are_sent_as_they_are(bench: Bench, api: str) -> None:
    await bench.answer(api, Turn("ok"), messages=[user(Text(text="What?"), PNG, REMOTE, DOCUMENT)])
    [message] = items(bench)
    pdf = f"data:application/pdf;base64,{base64.b64encode(PDF).decode()}"
    expected: dict[str, list[dict[str, Any]]] = {
        "openai": [
            {"type": "input_text", "text": "What?"},
            {"type": "input_image", "detail": "auto", "image_url": PNG_URL},
            {"type": "input_image", "detail": "auto", "image_url": "https://x.test/b.jpg"},
            {"type": "input_file", "filename": "a.pdf", "file_data": pdf},
        ],
        "openai-chat": [
            {"type": "text", "text": "What?"},
            {"type": "image_url", "image_url": {"url": PNG_URL}},
            {"type": "image_url", "image_url": {"url": "https://x.test/b.jpg"}},
            {"type": "file", "file": {"filename": "a.pdf", "file_data": pdf}},
        ],
    }
    assert message == {"role": "user", "content": expected[api]}
    assert bench.server.refusals == []


async def test_audio_is_sent_where_the_api_has_it_and_described_elsewhere(bench: Bench) -> None:
    await bench.answer("openai-chat", Turn("ok"), messages=[user(SOUND)])
    assert items(bench)[0]["content"] == [
        {"type": "input_audio", "input_audio": {"data": base64.b64encode(WAV).decode(), "format": "wav"}}
    ]
    await bench.ask("openai", [user(SOUND)])
    assert items(bench)[0]["content"] == f"[audio (audio/wav, {len(WAV)} bytes): it cannot be shown to this model]"


@pytest.mark.parametrize("api", APIS)
async def test_a_text_file_that_no_api_takes_is_written_out(bench: Bench, api: str) -> None:
    table = File.from_bytes(b"a,b\n1,2\n", name="t.csv")
    await bench.answer(api, Turn("ok"), messages=[user(Text(text="Sum."), table)])
    assert items(bench)[0]["content"] == 'Sum.\n\n[file "t.csv" (text/csv, 8 bytes)]\na,b\n1,2\n'


def answers_ok(body: dict[str, Any], nth: int) -> Turn:
    return Turn("ok")


def refuses_images(status: int, message: str) -> Script:
    """A model that refuses each request with an image, and answers others."""

    def script(body: dict[str, Any], nth: int) -> Turn:
        is_refused = "image_url" in json.dumps(body)
        return Turn(failure=Failure(status=status, body={"error": {"message": message}})) if is_refused else Turn("ok")

    return script


LOOK = ToolDefinition(name="look", description="Look.", parameters={"type": "object", "properties": {}})
CALLS = assistant_message("", tool_call("a", "look"), tool_call("b", "look"))


async def test_the_responses_api_gets_images_in_the_result(bench: Bench) -> None:
    messages: list[Message] = [GO, CALLS, tool_result("a", Text(text="Here."), PNG), tool_result("b", DOCUMENT)]
    bench.server.script("m", answers_ok)
    await bench.ask("openai", messages)
    assert items(bench)[3]["output"] == [
        {"type": "input_text", "text": "Here."},
        {"type": "input_image", "detail": "auto", "image_url": PNG_URL},
    ]
    assert bench.server.refusals == []


async def test_chat_completions_get_images_of_results_in_a_user_message_after_all_results_of_the_step(
    bench: Bench,
) -> None:
    """OpenAI refuses an image in a result, and a user message between two results."""
    messages: list[Message] = [
        GO,
        CALLS,
        tool_result("a", Text(text="Here."), PNG),
        tool_result("b", DOCUMENT),
        UserMessage(role="user", text="Hurry."),
    ]
    bench.server.script("m", answers_ok)
    await bench.ask("openai-chat", messages)
    sent = items(bench)
    assert [item["role"] for item in sent] == ["user", "assistant", "tool", "tool", "user", "user", "user"]
    label = f'[image "a.png" (image/png, {len(png())} bytes): in the next message]'
    assert sent[2]["content"] == f"Here.\n\n{label}"
    assert sent[4]["content"] == [
        {"type": "text", "text": "[From the result of look, call a:]"},
        {"type": "image_url", "image_url": {"url": PNG_URL}},
    ]
    assert sent[6]["content"] == "Hurry."
    assert bench.server.refusals == []


async def test_the_beginning_of_a_request_with_images_stays_the_same_bytes(bench: Bench) -> None:
    """The provider's cache needs it."""
    messages: list[Message] = [user(PNG), CALLS, tool_result("a", PNG), tool_result("b", PNG)]
    bench.server.script("m", answers_ok)
    await bench.ask("openai-chat", messages)
    first = json.dumps(items(bench))
    again = [*messages, assistant_message("", tool_call("c", "look")), tool_result("c", PNG)]
    await bench.ask("openai-chat", again)
    assert json.dumps(items(bench)).startswith(first[:-1])


REFUSALS = [
    (400, "Invalid content type. image_url is only supported by certain models."),
    (404, "No endpoints found that support image input"),
    (500, "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"),
    (400, "qwen is not a multimodal model"),
]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("status", "message"), REFUSALS)
async def test_a_model_that_takes_no_images_gets_descriptions_and_is_remembered(
    bench: Bench, api: str, status: int, message: str
) -> None:
    bench.server.script("m", refuses_images(status, message))
    reply = await bench.ask(api, [user(Text(text="What?"), PNG, DOCUMENT)])
    assert reply.text == "ok"
    content = items(bench)[0]["content"]
    assert content[1]["text"] == f"[image (image/png, {len(png())} bytes): this model cannot read it]"
    assert content[1]["type"] == content[0]["type"]
    before = len(bench.server.requests)
    await bench.ask(api, [user(Text(text="What?"), PNG)])
    assert len(bench.server.requests) == before + 1
    assert "image_url" not in json.dumps(items(bench))


@pytest.mark.parametrize("api", APIS)
async def test_an_image_that_cannot_be_read_is_described_once_and_others_are_sent_again(bench: Bench, api: str) -> None:
    refusal = "The image data you provided does not represent a valid image."
    bench.server.script("m", refuses_images(400, refusal))
    for _ in range(2):
        assert (await bench.ask(api, [user(PNG)])).text == "ok"
    assert ["image_url" in json.dumps(each.json) for each in bench.server.requests] == [True, False, True, False]


@pytest.mark.parametrize("api", APIS)
async def test_a_refusal_about_something_else_is_not_tried_again(bench: Bench, api: str) -> None:
    bench.server.script("m", [Turn(failure=Failure(status=400, body={"error": {"message": "Unknown model."}}))])
    with pytest.raises(ModelRequestError, match="Unknown model"):
        await bench.ask(api, [user(PNG)])
    assert len(bench.server.requests) == 1


OTHERS = ["anthropic", "google"]


def sent_text(bench: Bench) -> str:
    return json.dumps(bench.sent, ensure_ascii=False)


@pytest.mark.parametrize("api", OTHERS)
async def test_other_providers_send_images_and_files_of_messages_and_results(bench: Bench, api: str) -> None:
    messages: list[Message] = [
        user(Text(text="What?"), PNG, DOCUMENT),
        CALLS,
        tool_result("a", Text(text="Here."), PNG),
        tool_result("b", DOCUMENT),
    ]
    bench.server.script("m", answers_ok)
    assert (await bench.ask(api, messages, tools=[LOOK])).text == "ok"
    assert bench.server.refusals == []
    image, pdf = base64.b64encode(png()).decode(), base64.b64encode(PDF).decode()
    if api == "anthropic":
        first, _, results = bench.sent["messages"]
        source = {"type": "base64", "media_type": "image/png", "data": image}
        assert first["content"][1] == {"type": "image", "source": source}
        assert first["content"][2]["title"] == "a.pdf"
        assert results["content"][0]["content"] == [
            {"type": "text", "text": "Here."},
            {"type": "image", "source": source},
        ]
        assert results["content"][1]["content"][0]["source"]["data"] == pdf
        return
    first, _, results, media = bench.sent["contents"]
    assert first["parts"][1] == {"inlineData": {"mimeType": "image/png", "data": image}}
    assert [list(part) for part in results["parts"]] == [["functionResponse"]] * 2
    data = [part["inlineData"]["data"] for part in media["parts"] if "inlineData" in part]
    assert data == [image, pdf]


@pytest.mark.parametrize("api", OTHERS)
async def test_other_providers_describe_content_that_is_refused(bench: Bench, api: str) -> None:
    body = {"error": {"type": "invalid_request_error", "code": 400, "message": "Could not process image"}}

    def script(request: dict[str, Any], nth: int) -> Turn:
        has_image = base64.b64encode(png()).decode() in json.dumps(request)
        return Turn(failure=Failure(status=400, body=body)) if has_image else Turn("ok")

    bench.server.script("m", script)
    assert (await bench.ask(api, [user(Text(text="What?"), PNG)])).text == "ok"
    assert "it cannot be shown to this model" in sent_text(bench)


async def test_urls_go_to_anthropic_and_are_described_for_google(bench: Bench) -> None:
    bench.server.script("m", answers_ok)
    await bench.ask("anthropic", [user(REMOTE)])
    assert bench.sent["messages"][0]["content"][0]["source"] == {"type": "url", "url": "https://x.test/b.jpg"}
    await bench.ask("google", [user(REMOTE)])
    assert "[image (image/jpeg, https://x.test/b.jpg): it cannot be shown to this model]" in sent_text(bench)


class _TakesNothing(Scripted):
    def __init__(self) -> None:
        super().__init__({})


@pytest.mark.parametrize("message", [user(Text(text="A"), PNG), tool_result("a", Text(text="A"), PNG)])
def test_a_provider_that_takes_no_content_gets_descriptions_in_the_text(message: Message) -> None:
    fitted = fit_content(message, _TakesNothing())
    assert fitted.text == f'A\n\n[image "a.png" (image/png, {len(png())} bytes): it cannot be shown to this model]'
    assert getattr(fitted, "content", None) is None


def test_servers_without_tools_get_results_with_images_as_user_messages() -> None:
    from mulligan.activities.calls_in_text.calls_in_text import as_text
    from mulligan.activities.models._json_fields import results_first
    from mulligan.activities.models._strict_messages import strict_messages
    from mulligan.activities.models.openai.openai_chat import OpenAIChat, _without_tool_messages

    provider = OpenAIChat()
    messages: Sequence[Message] = [GO, CALLS, tool_result("a", PNG), tool_result("b", Text(text="x"), PNG)]
    encoded = [item for message in messages for item in provider.encode(message)]
    ordered = results_first(encoded, result='{"role":"tool"', user='{"role":"user"')
    plain = strict_messages(
        _without_tool_messages([json.loads(item) for item in ordered], as_text), {"roles_alternate"}
    )
    assert [message["role"] for message in plain] == ["user", "assistant", "user"]
    assert [part["type"] for part in plain[2]["content"]] == ["text", "text", "image_url", "text", "image_url"]
