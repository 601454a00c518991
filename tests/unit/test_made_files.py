"""Images and files that a provider makes: read from four APIs, kept by reference, and sent back with the bytes as they came."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mulligan import Image
from mulligan.activities.answers import kept_files as kept
from mulligan.activities.answers.kept_files import INLINE_BYTES, kept_files, without_bytes
from mulligan.activities.models._adapted import Adapted
from mulligan.activities.models._hosted_work import BYTES_MARK
from mulligan.activities.models._made_files import MOST_FILES
from mulligan.activities.models._refused_content import RefusedContent
from mulligan.activities.models._refused_content import without_content as described_items
from mulligan.activities.models.anthropic import anthropic
from mulligan.activities.models.fit_content import encoded, refs_needed, without_content
from mulligan.activities.models.fit_provider_data import fit_provider_data
from mulligan.activities.models.google import google
from mulligan.activities.models.google._google_assembler import GoogleAssembler
from mulligan.activities.models.openai import openai_chat, openai_responses
from mulligan.activities.models.openai._chat_assembler import ChatAssembler
from mulligan.activities.models.openai._chat_fields import without_fields
from mulligan.activities.models.openai._responses_assembler import ResponsesAssembler
from mulligan.activities.models.protocol import Reply, Request
from mulligan.activities.models.scripted import Scripted
from mulligan.client.content_store import ContentStore
from mulligan.client.stored_files import StorageError, StoredFiles
from mulligan.content import Media, Text, described, digest_of
from mulligan.errors import ModelRequestError
from mulligan.values import AssistantMessage, ToolCall
from mulligan.wire.agent_facts import Definition
from tests.support.content_files import WAV, png

Json = dict[str, Any]
REQUEST = Request(model="m", definition=Definition(instructions="", tools=[]), items=[], messages=[])
MAKERS: dict[str, Any] = {
    "openai": openai_responses.OpenAIResponses,
    "openai-chat": openai_chat.OpenAIChat,
    "google": google.Google,
    "anthropic": anthropic.Anthropic,
}
BIG = png(400_000)
"""As base64 it is more than the limit of a provider's items."""
PNG, JPEG = png(seed=1), b"\xff\xd8\xff\xe0" + b"j" * 60


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{b64(data)}"


def image_call(data: bytes | str, **fields: Any) -> Json:
    result = data if isinstance(data, str) else b64(data)
    call = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": result}
    return {**call, "output_format": "png", "revised_prompt": "A lamp", **fields}


def code_call(*outputs: Json) -> Json:
    call = {"type": "code_interpreter_call", "id": "ci_1", "status": "completed", "code": "plot()"}
    return {**call, "container_id": "c", "outputs": [{"type": "logs", "logs": "1"}, *outputs]}


def of_responses(*items: Json, text: str = "Here.") -> Reply:
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return openai_responses._reply({"status": "completed", "output": [*items, said]})


def of_google(*parts: Json) -> Reply:
    answer = {"candidates": [{"content": {"role": "model", "parts": list(parts)}, "finishReason": "STOP"}]}
    return google._reply(answer, REQUEST, "google", "KEY")


def inline(data: bytes | str, media_type: str = "image/png", **fields: Any) -> Json:
    return {"inlineData": {"mimeType": media_type, "data": data if isinstance(data, str) else b64(data)}, **fields}


def of_chat(**message: Any) -> Reply:
    said = {"role": "assistant", "content": "Here.", **message}
    return openai_chat._reply({"choices": [{"message": said, "finish_reason": "stop"}]})


def chat_image(data: bytes | str, **fields: Any) -> Json:
    url = data if isinstance(data, str) else data_url(data)
    return {"type": "image_url", "image_url": {"url": url}, **fields}


@pytest.fixture
def store(tmp_path: Path) -> ContentStore:
    return ContentStore(StoredFiles(tmp_path, "content"))


async def message_of(reply: Reply, store: ContentStore | None) -> AssistantMessage:
    """The message in history, as it is read there again."""
    message = AssistantMessage(
        role="assistant",
        text=reply.text,
        tool_calls=list(reply.calls),
        provider_data=fit_provider_data(reply.provider_data, 300_000),
        files=await kept_files(reply.files, store) or None,
    )
    return AssistantMessage.model_validate_json(message.model_dump_json())


async def sent(maker: str, message: AssistantMessage, store: ContentStore | None = None) -> list[Any]:
    """What a provider is sent of a message, as a worker with the storage does it."""
    provider = MAKERS[maker]()
    stored = {part.ref: b64(await store.get(part.ref)) for part in refs_needed(message, provider) if part.ref and store}
    return [json.loads(item) if isinstance(item, str) else item for item in encoded(message, provider, stored)]


REPLIES: dict[str, tuple[str, Callable[[bytes], Reply], Callable[[bytes], Any]]] = {
    "a generated image": ("openai", lambda data: of_responses(image_call(data)), image_call),
    "an image that code has plotted": (
        "openai",
        lambda data: of_responses(code_call({"type": "image", "url": data_url(data)})),
        lambda data: code_call({"type": "image", "url": data_url(data)}),
    ),
    "an image of Gemini's": (
        "google",
        lambda data: of_google({"text": "Here."}, inline(data, thoughtSignature="s")),
        lambda data: inline(data, thoughtSignature="s"),
    ),
    "an image of a gateway's": (
        "openai-chat",
        lambda data: of_chat(images=[chat_image(data, index=0)]),
        lambda data: chat_image(data, index=0),
    ),
    "an image in the content": (
        "openai-chat",
        lambda data: of_chat(content=[{"type": "text", "text": "Here."}, chat_image(data)]),
        chat_image,
    ),
}
over_replies = pytest.mark.parametrize(("maker", "reply_with", "item_with"), REPLIES.values(), ids=REPLIES)


def items_in(value: Any) -> list[Any]:
    """All objects in what was sent, at every depth."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [*([value] if isinstance(value, dict) else []), *(each for part in inner for each in items_in(part))]


@over_replies
async def test_it_is_stored_and_goes_back_to_its_provider_byte_for_byte(
    maker: str, reply_with: Callable[[bytes], Reply], item_with: Callable[[bytes], Any], store: ContentStore
) -> None:
    message = await message_of(reply_with(BIG), store)
    assert message.text == "Here."
    [image] = message.files or []
    assert isinstance(image, Image)
    assert (image.media_type, image.ref, image.size, image.data) == ("image/png", digest_of(BIG), len(BIG), None)
    assert await store.get(digest_of(BIG)) == BIG
    assert len(message.model_dump_json()) < 1_500
    assert item_with(BIG) in items_in(await sent(maker, message, store))


@over_replies
async def test_without_a_storage_a_small_one_is_in_history_and_a_large_one_is_a_sentence(
    maker: str, reply_with: Callable[[bytes], Reply], item_with: Callable[[bytes], Any]
) -> None:
    message = await message_of(reply_with(PNG), None)
    assert [part.data for part in message.files or () if isinstance(part, Media)] == [b64(PNG)]
    assert item_with(PNG) in items_in(await sent(maker, message))
    large = await message_of(reply_with(BIG), None)
    assert described(large.files) == (
        f"The image (image/png, {len(BIG):,} bytes) that the provider has made is not kept: without a content storage an "
        f"answer may have {INLINE_BYTES:,} bytes of files."
    )
    again = json.dumps(await sent(maker, large))
    assert "it cannot be shown to this model" in again
    assert BYTES_MARK not in again
    assert "Here." in again


@over_replies
@pytest.mark.parametrize("other", MAKERS)
async def test_another_provider_gets_it_in_a_message_of_the_user(
    maker: str, reply_with: Callable[[bytes], Reply], item_with: Callable[[bytes], Any], store: ContentStore, other: str
) -> None:
    if other == maker:
        return
    answer, shown = await sent(other, await message_of(reply_with(PNG), store), store)
    label = f"[image (image/png, {len(PNG)} bytes): it follows]"
    assert label in json.dumps(answer)
    assert b64(PNG) not in json.dumps(answer)
    assert shown["role"] == "user"
    assert b64(PNG) in json.dumps(shown)


async def test_between_a_call_and_its_result_there_is_a_line_alone(store: ContentStore) -> None:
    message = await message_of(of_responses(image_call(PNG)), store)
    message.tool_calls = [ToolCall(id="c1", name="look", arguments="{}")]
    [answer] = await sent("openai-chat", message, store)
    assert f"[image (image/png, {len(PNG)} bytes): it cannot be shown to this model]" in answer["content"]


async def test_a_provider_that_takes_no_images_needs_no_bytes_and_gets_a_line(store: ContentStore) -> None:
    message = await message_of(of_google(inline(PNG)), store)
    assert refs_needed(message, Scripted({})) == []
    [length] = encoded(message, Scripted({}))
    assert length == len(f"[image (image/png, {len(PNG)} bytes): it cannot be shown to this model]")


FAULTS = {
    "broken base64": ("!!!", "A file that the provider has made (image/png) is not kept: its bytes are no base64."),
    "no bytes of an image": (
        b64(b"no image"),
        "A file that the provider has made (image/png) is not kept: it has the \"media_type\" 'image/png', but its first "
        "bytes are those of no such format.",
    ),
}
NO_FILES: dict[str, Callable[[str], Reply]] = {
    "openai": lambda data: of_responses(image_call(data)),
    "google": lambda data: of_google({"text": "Here."}, inline(data)),
    "openai-chat": lambda data: of_chat(images=[chat_image(f"data:image/png;base64,{data}")]),
}


@pytest.mark.parametrize("maker", NO_FILES)
@pytest.mark.parametrize(("data", "sentence"), FAULTS.values(), ids=FAULTS)
async def test_what_cannot_be_used_is_a_sentence_and_the_answer_is_there(
    maker: str, data: str, sentence: str, store: ContentStore
) -> None:
    message = await message_of(NO_FILES[maker](data), store)
    assert message.text == "Here."
    assert described(message.files) == sentence
    again = json.dumps(await sent(maker, message, store))
    assert "Here." in again
    assert json.dumps(f"[{sentence}]").strip('"') in again
    assert json.dumps(data).strip('"') not in again


async def test_a_broken_plot_leaves_the_other_outputs_of_its_code(store: ContentStore) -> None:
    reply = of_responses(
        code_call({"type": "image", "url": "data:image/png;base64,!"}, {"type": "image", "url": data_url(PNG)})
    )
    message = await message_of(reply, store)
    [call, _] = await sent("openai", message, store)
    assert [each.get("logs", each.get("url")) for each in call["outputs"]] == [
        "1",
        "A file that the provider has made (image/png) is not kept: its bytes are no base64.",
        data_url(PNG),
    ]


async def test_bytes_of_another_known_type_are_what_they_are_and_go_back_as_they_came(store: ContentStore) -> None:
    message = await message_of(of_responses(image_call(JPEG)), store)
    assert [part.media_type for part in message.files or () if isinstance(part, Media)] == ["image/jpeg"]
    assert image_call(JPEG) in await sent("openai", message, store)


async def test_of_too_many_files_the_first_are_kept_and_one_sentence_says_so(store: ContentStore) -> None:
    pictures = [inline(png(seed=number)) for number in range(MOST_FILES + 3)]
    message = await message_of(of_google({"text": "Here."}, *pictures), store)
    *made, said = message.files or []
    assert len(made) == MOST_FILES
    assert (
        described([said]) == f"The provider has made more than {MOST_FILES} images and files: the others are not kept."
    )
    [content] = await sent("google", message, store)
    assert content["parts"][1 : MOST_FILES + 1] == pictures[:MOST_FILES]


async def test_a_draft_of_gemini_is_no_file_and_its_thought_goes_back_without_it(store: ContentStore) -> None:
    reply = of_google(inline(JPEG, "image/jpeg", thought=True), inline(PNG, thoughtSignature="s"), {"text": "Here."})
    message = await message_of(reply, store)
    assert [part.digest for part in message.files or () if isinstance(part, Media)] == [digest_of(PNG)]
    [content] = await sent("google", message, store)
    assert content["parts"] == [inline(PNG, thoughtSignature="s"), {"text": "Here."}]


async def test_files_that_are_only_at_anthropic_are_named(store: ContentStore) -> None:
    written = {"type": "bash_code_execution_output", "file_id": "file_011"}
    result = {"type": "bash_code_execution_result", "stdout": "", "stderr": "", "return_code": 0, "content": [written]}
    call = {"type": "server_tool_use", "id": "s1", "name": "bash_code_execution", "input": {"command": "plot"}}
    block = {"type": "bash_code_execution_tool_result", "tool_use_id": "s1", "content": result}
    answer = {"content": [call, block, {"type": "text", "text": "Here."}], "stop_reason": "end_turn", "usage": {}}
    message = await message_of(anthropic._reply(answer, "anthropic", "KEY"), store)
    sentence = "The provider has the file file_011, which its code has written; its Files API returns it."
    assert described(message.files) == sentence
    [turn] = await sent("anthropic", message)
    assert turn["content"] == [call, block, {"type": "text", "text": "Here."}]
    assert sentence in json.dumps(await sent("openai", message))


async def test_speech_is_a_file_and_only_its_id_goes_back(store: ContentStore) -> None:
    audio = {"id": "audio_1", "data": b64(WAV), "transcript": "Hello.", "expires_at": 1}
    message = await message_of(of_chat(content=None, audio=audio), store)
    assert described(message.files) == f"[audio (audio/wav, {len(WAV)} bytes)]"
    assert message.text == "Hello."
    [item] = await sent("openai-chat", message, store)
    assert (item["audio"], item["content"]) == ({"id": "audio_1"}, None)


async def test_an_image_at_an_address_stays_there(store: ContentStore) -> None:
    message = await message_of(of_chat(images=[chat_image("https://x.test/a.webp")]), store)
    assert described(message.files) == "[image (image/webp, https://x.test/a.webp)]"
    [item] = await sent("openai-chat", message, store)
    assert item["images"] == [chat_image("https://x.test/a.webp")]
    _, shown = await sent("openai", message, store)
    assert "https://x.test/a.webp" in json.dumps(shown)


# In streams


def streamed(assembler: Any, events: Sequence[Json]) -> Json:
    for event in events:
        assembler.add(event)
    result: Json = assembler.result()
    return result


def delta(**fields: Any) -> Json:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


async def test_images_of_a_stream_are_whole_once_each_and_never_in_the_live_text(store: ContentStore) -> None:
    """Each with the same index, and all of them once more at the end."""
    live: list[str] = []
    first, second = chat_image(PNG, index=0), chat_image(JPEG, index=0)
    chunks = [
        delta(role="assistant", content="He"),
        delta(images=[first]),
        delta(content="re."),
        delta(images=[second]),
    ]
    answer = streamed(ChatAssembler(live.append), [*chunks, delta(images=[first, second]), END])
    message = await message_of(openai_chat._reply(answer), store)
    assert [part.digest for part in message.files or () if isinstance(part, Media)] == [digest_of(PNG), digest_of(JPEG)]
    assert (message.text, "".join(live)) == ("Here.", "Here.")
    live.clear()
    item = {"type": "response.output_item.done", "output_index": 0, "item": image_call(PNG)}
    partial = {"type": "response.image_generation_call.partial_image", "partial_image_b64": b64(PNG)}
    done = {"type": "response.completed", "response": {"status": "completed", "output": []}}
    answer = streamed(ResponsesAssembler(live.append), [partial, item, done])
    assert [part.type for part in openai_responses._reply(answer).files] == ["image"]
    chunk = {"candidates": [{"content": {"parts": [inline(PNG)]}, "finishReason": "STOP"}]}
    answer = streamed(GoogleAssembler(live.append), [chunk])
    assert [part.type for part in google._reply(answer, REQUEST, "google", "KEY").files] == ["image"]
    assert live == []


# Where it cannot be had


async def test_a_model_that_refuses_images_gets_them_described(store: ContentStore) -> None:
    for maker, reply in {"openai": of_responses(image_call(PNG)), "google": of_google(inline(PNG))}.items():
        message, provider = await message_of(reply, store), MAKERS[maker]()
        request = Request(model="m", definition=REQUEST.definition, items=[], messages=[message])
        refused = ModelRequestError("This model does not support image input.", status=400)
        described_request = without_content(request, provider, refused)
        assert described_request is not None
        text = "".join(described_request.items)
        assert f"[image (image/png, {len(PNG)} bytes): it cannot be shown to this model]" in text
        assert BYTES_MARK not in text


async def test_what_only_the_refusal_of_an_endpoint_says_is_described_in_requests_as_they_are(
    store: ContentStore,
) -> None:
    call = (await sent("openai", await message_of(of_responses(image_call(PNG)), store), store))[0]
    message = (await sent("openai-chat", await message_of(of_chat(images=[chat_image(PNG)]), store), store))[0]
    items = [json.dumps(each, separators=(",", ":")) for each in (call, message)]
    refused = RefusedContent(Adapted())
    error = ModelRequestError("This model does not support image input.", status=400)
    assert [refused.learn(f"m{n}", [item], error) for n, item in enumerate(items)] == [{"image"}, {"image"}]
    assert [json.loads(item) for item in described_items(items, frozenset({"image"}))] == [
        {"role": "assistant", "content": f"[image (image/png, {len(PNG)} bytes): this model cannot read it]"},
        {
            "role": "assistant",
            "content": "Here.\n\n[Images made in this answer (1): this model's endpoint does not take them here]",
        },
    ]


async def test_an_endpoint_that_refuses_the_field_gets_a_sentence(store: ContentStore) -> None:
    message = await message_of(of_chat(images=[chat_image(PNG)]), store)
    item = json.dumps((await sent("openai-chat", message, store))[0], separators=(",", ":"))
    [plain] = map(json.loads, without_fields([item], ["images"]))
    assert plain == {
        "role": "assistant",
        "content": "Here.\n\n[Images made in this answer (1): this model's endpoint does not take them here]",
    }


async def test_what_a_client_writes_as_a_mark_reads_nothing(store: ContentStore) -> None:
    ref = await store.put(PNG)
    message = AssistantMessage(role="assistant", text="x", provider_data={"openai": [image_call(BYTES_MARK + ref)]})
    assert refs_needed(message, openai_responses.OpenAIResponses()) == []
    assert b64(PNG) not in json.dumps(await sent("openai", message, store))


async def test_a_storage_that_fails_is_tried_again_and_then_the_answer_goes_on_without(
    monkeypatch: pytest.MonkeyPatch, store: ContentStore
) -> None:
    tries: list[int] = []

    class Failing(ContentStore):
        async def put(self, data: bytes) -> str:
            tries.append(len(data))
            if len(tries) < failures:
                raise StorageError("The bucket does not answer.")
            return await store.put(data)

    async def no_time(_: float) -> None:
        return

    monkeypatch.setattr(
        kept, "asyncio", type("asyncio", (), {"sleep": staticmethod(no_time), "to_thread": asyncio.to_thread})
    )
    image = Image.from_bytes(PNG)
    failures = 3
    failing = Failing(StoredFiles(Path("/nowhere"), "content", creates_folder=True))
    assert await kept_files([image], failing) == [image.referring_to(digest_of(PNG))]
    failures = 9
    assert described(await kept_files([image], failing)) == (
        f"The {image.label} that the provider has made is not kept: The bucket does not answer."
    )
    assert len(tries) == 6


def test_an_answer_too_large_for_history_keeps_what_is_only_referred_to() -> None:
    image, stored = Image.from_bytes(PNG), Image(ref=digest_of(JPEG), media_type="image/jpeg", size=3)
    assert without_bytes([image, stored, Text(text="x")]) == [
        Text(text=f"The {image.label} that the provider has made is not kept: the answer is too large beside it."),
        stored,
        Text(text="x"),
    ]
    assert without_bytes(None) is None
