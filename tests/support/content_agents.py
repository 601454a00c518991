"""Agents whose tools return images, files and faulty content."""

from __future__ import annotations

from typing import Any

from mulligan import Agent, Audio, File, Image, Text, ToolContext, tool
from mulligan.tools import ask_person
from tests.support.content_files import PDF, WAV, png

MEGABYTE = 1_000_000


@tool
def photo(number: int, ctx: ToolContext) -> Image:
    """Take a photo of a megabyte."""
    return Image.from_bytes(png(MEGABYTE, number), name=f"{number}.png")


@tool
def look() -> list[Any]:
    """A text, a small image, a PDF and a sound."""
    return [
        "Here:",
        Image.from_bytes(png(), name="small.png"),
        File.from_bytes(PDF, name="a.pdf"),
        Audio.from_bytes(WAV),
        {"more": 1},
    ]


@tool
def texts() -> list[Text]:
    """Only texts."""
    return [Text(text="one"), Text(text="two")]


@tool
def wrong(what: str) -> Any:
    """Return content that cannot be used."""
    match what:
        case "type":
            return Image.from_bytes(png(), "image/jpeg")
        case "large":
            return File.from_bytes(b"%PDF-" + b"." * 20_000_000)
        case "unknown":
            return File.from_bytes(b"\1\2\3", name="a.bin")
        case "ref":
            return Image(ref="sha256:" + "0" * 64, media_type="image/png")
    return [Image.from_bytes(png())] * 101


@tool
def show(ref: str) -> Image:
    """Show stored content."""
    return Image(ref=ref, media_type="image/png")


@tool(isolated=True)
def isolated_photo() -> Image:
    """A photo of a process of its own."""
    return Image.from_bytes(png(5_000), name="isolated.png")


painter = Agent(
    name="painter",
    model="openai:gpt-test",
    instructions="Paint.",
    tools=[photo, look, texts, wrong, show, isolated_photo],
    max_steps=50,
)
asker = Agent(name="asker", model="openai:gpt-test", tools=[ask_person])
hasty = Agent(name="hasty", model="openai:gpt-test", model_patience=2)
