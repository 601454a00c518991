"""What to do where an endpoint refuses the images, files or audio of a request: they are sent again as descriptions."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from mulligan.activities.models import _refusals
from mulligan.activities.models._adapted import Adapted
from mulligan.activities.models._json_fields import to_json
from mulligan.activities.models.openai._chat_fields import IMAGES, without_fields
from mulligan.activities.models.protocol import Request, Unavailable
from mulligan.errors import ModelRequestError

T = TypeVar("T")
_MADE = "image_generation_call"
_KINDS = {"image_url": "image", "input_image": "image", "input_audio": "audio", "file": "file", "input_file": "file"}
_KINDS |= {_MADE: "image"}
"""The types of parts in both of OpenAI's APIs, and of an item that is an image, and what they are."""


class RefusedContent:
    """Which kinds of content the models of an endpoint refuse."""

    def __init__(self, adapted: Adapted) -> None:
        self._adapted = adapted

    def of(self, model: str) -> frozenset[str]:
        """The kinds that the model has refused: `image`, `audio`, `file`."""
        if not (words := self._adapted.of(model)):
            return words
        return frozenset(kind for kind in _refusals.CONTENT_OF_KIND if _word(kind) in words)

    def without(self, request: Request) -> Request:
        """The request with descriptions of what its model has refused."""
        refused = self.of(request.model)
        return replace(request, items=without_content(request.items, refused)) if refused else request

    async def send(self, request: Request, send: Callable[[Request], Awaitable[T]]) -> T:
        """Send a request without what its model has refused; where it refuses some of the rest, again without that.

        Args:
            request: The request.
            send: Sends it, or raises ModelRequestError or Unavailable.
        """
        request = self.without(request)
        try:
            return await send(request)
        except (ModelRequestError, Unavailable) as error:
            if not (refused := self.learn(request.model, request.items, error)):
                raise
        return await send(replace(request, items=without_content(request.items, refused)))

    def learn(self, model: str, items: Sequence[str], error: ModelRequestError | Unavailable) -> frozenset[str]:
        """The kinds that the error refuses, of those in the items; empty if it is about something else.

        A model that does not support a kind is remembered; a single image that it cannot read is not.
        """
        message, is_unsupported = str(error), bool(_refusals.UNSUPPORTED.search(str(error)))
        if isinstance(error, ModelRequestError):
            is_candidate = error.status in (None, 400, 404, 413, 415, 422)
        else:
            is_candidate = (error.status or 0) in (500, 501) and is_unsupported
        present = {kind for item in items for name, kind in _KINDS.items() if f'"type":"{name}"' in item}
        mentioned = (kind for kind in present if _refusals.CONTENT_OF_KIND[kind].search(message))
        refused = frozenset(mentioned) if is_candidate else frozenset()
        if refused and is_unsupported:
            self._adapted.learn(model, map(_word, refused))
        return refused


def _word(kind: str) -> str:
    return f"{kind}_as_text"


def without_content(items: Sequence[str], kinds: frozenset[str]) -> list[str]:
    """The items with parts of these kinds as descriptions in text."""
    names = [name for name, kind in _KINDS.items() if kind in kinds]
    return [_described(item, names) if any(f'"type":"{name}"' in item for name in names) else item for item in items]


def _described(item: str, names: Sequence[str]) -> str:
    value = json.loads(item)
    if value.get("type") == _MADE:
        said = _description({"type": _MADE, "url": f"data:image/{value.get('output_format')},{value.get('result')}"})
        return to_json({"role": "assistant", "content": said})
    if IMAGES in value and "image_url" in names:
        [item] = without_fields([item], [IMAGES])
        value = json.loads(item)
    for field in ("content", "output"):
        parts = value.get(field)
        if isinstance(parts, list):
            text = (
                "text"
                if any(part.get("type") in ("text", "image_url", "file", "input_audio") for part in parts)
                else "input_text"
            )
            value[field] = [
                {"type": text, "text": _description(part)} if part.get("type") in names else part for part in parts
            ]
    return to_json(value)


def _description(part: dict[str, Any]) -> str:
    kind = _KINDS[part["type"]]
    body = part[part["type"]] if isinstance(part.get(part["type"]), dict) else part
    name = f' "{body["filename"]}"' if body.get("filename") else ""
    source = next((body[key] for key in ("url", "image_url", "file_url", "file_data", "data") if body.get(key)), "")
    if source.startswith(("http://", "https://")):
        return f"[{kind}{name} ({source}): this model cannot read it]"
    head, _, data = source.rpartition(",")
    media_type = head.removeprefix("data:").partition(";")[0] or body.get("format", kind)
    return (
        f"[{kind}{name} ({media_type}, {len(data) * 3 // 4 - data[-2:].count('='):,} bytes): this model cannot read it]"
    )
