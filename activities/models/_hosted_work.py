"""What a provider did itself for an answer: its calls, what they found, and the sources that the answer names.

Each provider reads it from its own items. It is bounded here: for steps and events, and for the text that describes it to a
model of another provider, which cannot read the items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from mulligan.activities.models._json_fields import as_text
from mulligan.schema.cut_text import beginning, cut_text
from mulligan.values import AssistantMessage, Citation, HostedCall, well_formed

MOST_CALLS, MOST_CITATIONS = 100, 100
"""Of one answer."""
ID_CHARS, NAME_CHARS, URL_CHARS, ARGUMENTS_CHARS, CITED_CHARS = 200, 200, 1_000, 1_000, 500
FOUND_DEPTH = 8
FOUND_CHARS = 4_000
"""Characters of what one call has found, in a description."""
DESCRIPTION_CHARS = 20_000
"""Characters of the description of all items of an answer."""
LEFT_OUT = "mulligan:left_out"
"""The type of what stands in the place of an item that could not be kept: its `text` says why."""
BYTES_MARK = "mulligan:file:"
"""Stands in an item, before their digest, for the bytes of a file of the message."""
_READERS = {
    "openai": "openai._responses_items",
    "openai-chat": "openai._chat_fields",
    "anthropic": "anthropic._anthropic_blocks",
    "google": "google._google_parts",
}
"""The modules whose `hosted_work` reads a provider's part of `provider_data`."""


@dataclass(frozen=True)
class HostedWork:
    """A call that a provider carried out, and what it has found, as text."""

    id: str
    name: str
    arguments: object
    status: str
    found: str = ""

    @property
    def call(self) -> HostedCall:
        """The call, bounded, as steps and events have it."""
        arguments = {} if self.arguments is None else self.arguments
        return HostedCall(
            id=beginning(_clean(self.id), ID_CHARS),
            name=beginning(_clean(self.name), NAME_CHARS),
            arguments=cut_text(_clean(as_text(arguments)), ARGUMENTS_CHARS),
            status=beginning(_clean(self.status), ID_CHARS),
        )

    def describe(self) -> str:
        """The call and what it has found, for a model that cannot read the provider's items."""
        call = self.call
        said = f"[Carried out by a model's provider: {call.name}({call.arguments}), {call.status}"
        return f"{said}. It found:\n{cut_text(self.found, FOUND_CHARS)}]" if self.found.strip() else f"{said}]"


def objects(value: object) -> list[dict[str, Any]]:
    """The objects in a list; none if it is no list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def texts_in(value: Any, fields: Sequence[str] = (), *, longest: int | None = None, depth: int = 0) -> Iterator[str]:
    """The texts in what a call has found, in their order.

    Args:
        value: What it has found.
        fields: Those of an object that are a line of text together; none: each text of an object is one.
        longest: Characters of a text outside of these fields; None: no limit. A longer one is no text for people.
        depth: How deep the value is within what the call has found.
    """
    if depth > FOUND_DEPTH:
        return
    if isinstance(value, str):
        yield from [value] if (longest is None or len(value) <= longest) and not _is_bytes(value) else []
    elif isinstance(value, list):
        for each in value:
            yield from texts_in(each, fields, longest=longest, depth=depth + 1)
    elif isinstance(value, dict):
        found = (value.get(name) for name in fields)
        line = [each for each in found if isinstance(each, str) and each and not _is_bytes(each)]
        yield from [" ".join(line)] if line and value.get("type") != "base64" else []
        for each in value.values():
            if not fields or isinstance(each, dict | list):
                yield from texts_in(each, fields, longest=longest, depth=depth + 1)


def _is_bytes(text: str) -> bool:
    return text.startswith(BYTES_MARK) or (text.startswith("data:") and ";base64," in text[:200])


def hosted_calls(work: Iterable[HostedWork]) -> list[HostedCall]:
    """The first calls of the work."""
    return [each.call for each in list(work)[:MOST_CALLS]]


def citation(
    url: object, title: object, text: object = None, start: object = None, end: object = None, *, length: int
) -> Citation:
    """A citation, bounded. Its place is left out where it lies outside of the text, which has `length` characters."""
    is_place = isinstance(start, int) and isinstance(end, int) and 0 <= start <= end <= length
    return Citation(
        url=beginning(_clean(as_text(url)), URL_CHARS),
        title=beginning(_clean(as_text(title)), NAME_CHARS),
        text=cut_text(_clean(text), CITED_CHARS) if isinstance(text, str) and text else None,
        start=start if is_place and isinstance(start, int) else None,
        end=end if is_place and isinstance(end, int) else None,
    )


def text_with_description(message: AssistantMessage, own_key: str) -> str:
    """The text of an answer for a provider; what another one did for it, whose items this one cannot read, comes first.

    Args:
        message: The answer.
        own_key: The provider's key in `provider_data`.
    """
    data = message.provider_data
    if not data or own_key in data:
        return message.text
    descriptions = [each.describe() for key, value in data.items() for each in _work_of(key, value)]
    sources = [f"[Source: {each}]" for each in dict.fromkeys(_sources(data))]
    described = cut_text("\n".join([*descriptions, *sources]), DESCRIPTION_CHARS)
    return "\n\n".join(filter(None, (described, message.text)))


def describe_items(key: str, items: Sequence[Any], kind: str) -> str:
    """What stands in the place of items that were too large to be kept.

    Args:
        key: The provider's key in `provider_data`.
        items: The items.
        kind: Their type and their size.
    """
    descriptions = [each.describe() for each in _work_of(key, items)]
    heading = f"[What the provider returned here ({kind}) was too large to be kept.]"
    return cut_text("\n".join([heading, *descriptions]), DESCRIPTION_CHARS)


def is_built_in(key: str) -> bool:
    """Whether a key of `provider_data` is of a provider whose items can be described."""
    return key.partition("@")[0] in _READERS


def fit_citation(cited: Citation, length: int) -> Citation:
    """A citation, bounded, without its place where that lies outside of a text with `length` characters."""
    return citation(cited.url, cited.title, cited.text, cited.start, cited.end, length=length)


def fit_call(call: HostedCall) -> HostedCall:
    """A call, bounded."""
    return HostedWork(call.id, call.name, call.arguments, call.status).call


def _work_of(key: str, value: Any) -> Sequence[HostedWork]:
    return _read(key, "hosted_work", value)


def _sources(data: Mapping[str, Any]) -> Iterable[str]:
    for key, value in data.items():
        for each in _read(key, "cited_sources", value)[:MOST_CITATIONS]:
            yield beginning(_clean(" ".join(filter(None, each))), URL_CHARS)


def _read(key: str, function: str, value: Any) -> list[Any]:
    """What a provider's reader finds in its part of `provider_data`; nothing where that has another form, or no reader."""
    module = _READERS.get(key.partition("@")[0])
    if module is None:
        return []
    read: Callable[[Any], Iterable[Any]] = getattr(import_module(f"{__package__}.{module}"), function)
    try:
        return list(read(value))
    except (TypeError, ValueError, LookupError, AttributeError):
        return []


def _clean(text: str) -> str:
    return str(well_formed(text)).replace("\0", "\ufffd")
