"""Parts of prompts, messages and results: what is accepted, and that `text` and `content` agree."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mulligan import Audio, File, Image, InvalidRunInputError, RunInput, Text, ToolMessage, UserMessage
from mulligan.content import MAX_CONTENT_BYTES, ContentError, content_file, described
from mulligan.run_input import parse_run_input
from mulligan.wire.conversation_ref import chain_digest
from mulligan.wire.updates import SendMessage
from mulligan.workflows.conversation.records import ConversationSummary
from mulligan.workflows.listed_status import ListedWaits
from mulligan.workflows.people.answered_updates import AnsweredUpdates
from mulligan.workflows.people.inbox import Inbox
from tests.support.content_files import PDF, WAV, png

PNG = base64.b64encode(png()).decode()


def test_the_digest_of_a_message_without_parts_is_that_of_earlier_versions() -> None:
    """It is in histories, and in caches of workers of both versions."""
    assert UserMessage(role="user", text="Hi").model_dump_json() == '{"role":"user","text":"Hi"}'
    result = ToolMessage(role="tool", call_id="c", name="t", text="ok")
    assert result.model_dump_json() == '{"role":"tool","call_id":"c","name":"t","text":"ok","error":null}'
    assert chain_digest("", UserMessage(role="user", text="Hi"))[0] == "9536feb675ea84ec"


def test_a_prompt_of_parts_is_a_message_whose_text_is_that_of_its_parts() -> None:
    prompt = ["What is this?", Image.from_bytes(png(), name="a.png"), Text(text="And this?")]
    run_input = RunInput(agent="a", prompt=prompt)
    again = parse_run_input(run_input.model_dump_json(exclude_unset=True).encode())
    [message] = again.new_messages
    assert isinstance(message, UserMessage)
    assert message.text == "What is this?\n\nAnd this?"
    assert [part.type for part in message.content or []] == ["text", "image", "text"]
    assert json.loads(message.model_dump_json())["content"][1] == {
        "type": "image",
        "media_type": "image/png",
        "data": PNG,
        "name": "a.png",
    }


def test_a_text_beside_content_without_text_is_its_first_part() -> None:
    message = UserMessage.model_validate(
        {"role": "user", "text": "Look.", "content": [{"type": "image", "url": "https://x.test/a.jpg"}]}
    )
    assert message.content is not None
    assert message.content[0] == Text(text="Look.")
    assert message.text == "Look."


@pytest.mark.parametrize(
    ("part", "media_type"),
    [
        (Image.from_bytes(png()), "image/png"),
        (Image(url="https://x.test/photo.JPG?size=1"), "image/jpeg"),
        (Image(url=f"data:image/png;base64,{PNG}"), "image/png"),
        (File.from_bytes(PDF), "application/pdf"),
        (File.from_bytes(b"a,b\n1,2\n", name="t.csv"), "text/csv"),
        (Audio.from_bytes(WAV), "audio/wav"),
        (File(ref="sha256:" + "0" * 64, media_type="application/pdf", size=9), "application/pdf"),
    ],
)
def test_a_media_type_is_read_from_the_bytes_or_from_the_extension(part: Image, media_type: str) -> None:
    assert part.media_type == media_type


FAULTS: list[tuple[Any, str]] = [
    ([], '"prompt" is [], but it must not be empty.'),
    ([{"type": "picture"}], '"prompt[0]" needs a "type" of text, image, file or audio.'),
    ([{"type": "image", "media_type": "image/png"}], 'needs exactly one of "url", "data" and "ref"'),
    ([{"type": "image", "data": PNG, "url": "https://x.test/a.png"}], 'needs exactly one of "url", "data" and "ref"'),
    ([{"type": "image", "data": PNG, "media_type": "image/jpeg"}], "'image/jpeg', but its bytes are image/png."),
    (
        [{"type": "file", "data": PNG, "media_type": "application/pdf"}],
        "'application/pdf', but its bytes are image/png.",
    ),
    (
        [{"type": "image", "data": base64.b64encode(b"GIF?").decode(), "media_type": "image/gif"}],
        "'image/gif', but its first bytes are those of no such format.",
    ),
    (
        [{"type": "file", "data": base64.b64encode(b"\0\1").decode()}],
        'is of an unknown type; say which with "media_type".',
    ),
    ([{"type": "audio", "data": PNG}], 'that of an audio begins with "audio/".'),
    ([{"type": "image", "data": "not base64!", "media_type": "image/png"}], 'has "data" that is not base64.'),
    (
        [{"type": "image", "url": "file:///etc/passwd", "media_type": "image/png"}],
        'has a "url" that is not an http(s) URL',
    ),
    *(
        ([{"type": "image", "url": url, "media_type": "image/png"}], 'has a "url" that is not an http(s) URL')
        for url in ("https://[", "https://", "http:///a.png", "https://[::1")
    ),
    ([{"type": "image", "ref": "sha256:12", "media_type": "image/png"}], 'has a "ref" that is not "sha256:"'),
    ([{"type": "image", "media_type": "png", "data": PNG}], 'it must be one such as "image/png".'),
    ([{"type": "image", "data": PNG, "alt": "x"}], '"prompt[0].alt" is not a known field'),
    ([{"type": "text", "text": "x"}] * 101, "at most 100 items"),
    (
        [{"type": "file", "ref": "sha256:" + "0" * 64, "media_type": "application/pdf", "size": MAX_CONTENT_BYTES + 1}],
        "the limit for a part is 20,000,000",
    ),
]


@pytest.mark.parametrize(("prompt", "sentence"), FAULTS)
def test_each_fault_of_a_part_has_its_sentence(prompt: Any, sentence: str) -> None:
    with pytest.raises(InvalidRunInputError) as refused:
        parse_run_input(json.dumps({"agent": "a", "prompt": prompt}).encode())
    assert sentence in refused.value.message
    with pytest.raises(InvalidRunInputError) as refused:
        parse_run_input(json.dumps({"agent": "a", "messages": [{"role": "user", "content": prompt}]}).encode())
    assert sentence.replace('"prompt', '"messages[0].content') in refused.value.message


def test_content_that_is_too_large_is_refused() -> None:
    too_large = png(MAX_CONTENT_BYTES)
    with pytest.raises(ContentError, match=r"^The image has [\d,]+ bytes; the limit for a part is 20,000,000\.$"):
        Image.from_bytes(too_large)


def test_a_message_to_a_run_needs_a_text_or_content() -> None:
    with pytest.raises(ValidationError):
        SendMessage.model_validate({})
    with pytest.raises(ValidationError):
        SendMessage.model_validate({"text": ""})
    assert SendMessage.model_validate({"content": [{"type": "image", "data": PNG}]}).text == ""
    for message in ({"text": "x"}, {"content": [{"type": "image", "data": PNG}]}, {"content": ["x"], "id": "m"}):
        parsed = SendMessage.model_validate(message)
        for written in (parsed.model_dump(exclude_none=True), parsed.model_dump(mode="json", exclude_none=True)):
            assert SendMessage.model_validate(written) == parsed  # clients write it again, with stored content


@pytest.mark.parametrize(
    ("name", "data", "part", "media_type"),
    [
        ("photo.png", png(), Image, "image/png"),
        ("photo", png(), Image, "image/png"),
        ("a.pdf", PDF, File, "application/pdf"),
        ("notes.md", b"# Notes", File, "text/markdown"),
        ("a.wav", WAV, Audio, "audio/wav"),
    ],
)
def test_a_file_becomes_a_part_by_its_bytes_and_name(
    tmp_path: Path, name: str, data: bytes, part: type[Image], media_type: str
) -> None:
    (tmp_path / name).write_bytes(data)
    read = content_file(tmp_path / name)
    assert isinstance(read, part)
    assert (read.media_type, read.name, read.content) == (media_type, name, data)


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        ("missing.png", None, "cannot be read: No such file or directory."),
        ("empty.png", b"", "is empty."),
        ("a.bin", b"\1\2\3", "is of an unknown type"),
        ("photo.png", b"\xff\xd8\xff\xe0", "is image/png by its name, but its bytes are image/jpeg."),
        ("notes.txt", b"a\0b", "is text/plain by its name, but its bytes are not text."),
    ],
)
def test_a_file_that_cannot_be_a_part_has_its_sentence(
    tmp_path: Path, name: str, data: bytes | None, sentence: str
) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ContentError) as refused:
        content_file(tmp_path / name)
    assert sentence in str(refused.value)


def test_parts_are_described_by_kind_name_type_and_size() -> None:
    parts = ["Look.", Image.from_bytes(png(5000), name="a.png"), Image(url="https://x.test/a.png")]
    run_input = RunInput(agent="a", prompt=parts)
    size = len(png(5000))
    assert described(run_input.prompt) == (
        f'Look.\n\n[image "a.png" (image/png, {size:,} bytes)]\n\n[image (image/png, https://x.test/a.png)]'
    )


async def test_the_examples_of_the_page_are_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in Python are run, those in JSON are parsed."""
    page = (Path(__file__).parents[2] / "docs/content.md").read_text()
    (tmp_path / "lamp.png").write_bytes(png(5_000))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"take_picture": lambda _: png()}
    for example in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(example, names)
    [message] = names["run_input"].new_messages
    assert [part.type for part in message.content] == ["text", "image", "file"]
    text, picture = names["screenshot"].function("home")
    assert (text, picture.media_type) == ("The page home:", "image/png")
    [example] = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    assert parse_run_input(example.encode()).agent == "support"


def test_a_summary_keeps_the_images_of_the_request() -> None:
    summary = ConversationSummary(
        task="What is this?", content=[Image.from_bytes(png())], heading="H", summary="S", answers=1
    )
    again = ConversationSummary.model_validate_json(summary.model_dump_json())
    assert again.message.text == "What is this?\n\nH\n\nS"
    assert [part.type for part in again.message.content or []] == ["text", "image"]
    without = ConversationSummary(heading="H", summary="S", answers=1)
    assert "content" not in without.model_dump_json()


async def _ready() -> None:
    pass


def _inbox() -> Inbox:
    return Inbox(ListedWaits(list), AnsweredUpdates(_ready))


def test_an_inbox_carries_parts() -> None:
    inbox = _inbox()
    inbox.add_message(SendMessage(text="Hi"), "a")
    inbox.add_message(SendMessage(text="Look.", content=[Text(text="Look."), Image.from_bytes(png())]), "b")
    state = json.loads(json.dumps(inbox.dump()))
    again = _inbox()
    again.load(state)
    assert [message.text for message in again.take_messages()] == ["Hi", "Look."]
