"""Images and files that a provider has made: taken out of its items, where a mark stands for their bytes, and put back.

A message has the files themselves (`AssistantMessage.files`), by reference: its items are small, and go back to the provider
with the bytes as they came.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence

from pydantic import JsonValue, TypeAdapter, ValidationError

from mulligan.activities.models._hosted_work import BYTES_MARK, LEFT_OUT
from mulligan.content import Media, Part, Text, digest_of
from mulligan.schema.cut_text import beginning
from mulligan.schema.media_types import HEAD_BYTES, MEDIA_TYPE, conflict, sniffed, type_of_name

MOST_FILES = 50
"""Of one answer: more than any API returns, and fewer than the parts of a message."""
NOTHING_MORE = f"The provider has made more than {MOST_FILES} images and files: the others are not kept."
_WORDS_SHOWN = 200
_SPACE = re.compile(r"\s+")
_MARKED = re.compile(rf"{BYTES_MARK}(sha256:[0-9a-f]{{64}})\Z")
_PART: TypeAdapter[Part] = TypeAdapter(Part)


class MadeFiles:
    """The files of one answer, as its items are read. What cannot be kept of them is a sentence in its place."""

    def __init__(self) -> None:
        self.parts: list[Part] = []

    def take(self, data: object, media_type: object = "", name: str | None = None) -> str | None:
        """Take a file by its bytes in base64; returns the mark for them. None: it cannot be used, as the newest part says.

        Args:
            data: The bytes in base64, or a `data:` URL, whose mark is one too.
            media_type: That which the provider says. Where the bytes are of another known type, they are right.
            name: The file's name.
        """
        text = data if isinstance(data, str) else ""
        head, comma, rest = text.partition(",") if text[:5].lower() == "data:" else ("", "", text)
        declared = _clean_type((head[5:].partition(";")[0] if comma else "") or media_type)
        try:
            content = base64.b64decode(_SPACE.sub("", rest), validate=True)
        except (binascii.Error, ValueError):
            content = b""
        what = f"A file that the provider has made ({declared or 'of no type'}) is not kept"
        if not content:
            self.note(f"{what}: its bytes are no base64.")
            return None
        encoded = base64.b64encode(content).decode()
        is_taken = self._add({"data": encoded, "name": name}, _type_of(content, declared), what)
        return f"{head}{comma}{BYTES_MARK}{digest_of(content)}" if is_taken else None

    def take_url(self, url: object, media_type: str = "") -> str | None:
        """Take a file by its URL, which stays as it is unless it has the bytes; None as for `take`."""
        if not isinstance(url, str) or url[:5].lower() == "data:":
            return self.take(url, media_type)
        what = "A file that the provider has made is not kept"
        return url if self._add({"url": url}, type_of_name(url) or media_type, what) else None

    def note(self, sentence: str) -> None:
        """Add a sentence, about a file that is not here."""
        if len(self.parts) >= MOST_FILES:
            sentence = NOTHING_MORE
        if self.newest != sentence:
            self.parts.append(Text(text=sentence))

    @property
    def newest(self) -> str:
        """The newest sentence."""
        last = self.parts[-1] if self.parts else None
        return last.text if isinstance(last, Text) else ""

    def left_out(self) -> dict[str, JsonValue]:
        """What stands in the place of an item whose file could not be kept."""
        return {"type": LEFT_OUT, "text": f"[{self.newest}]"}

    def _add(self, fields: dict[str, JsonValue], media_type: str, what: str) -> bool:
        """Add a file. False: there are too many, or it cannot be used."""
        if len(self.parts) >= MOST_FILES:
            self.note(NOTHING_MORE)
            return False
        kind = media_type.partition("/")[0]
        kind = kind if kind in ("image", "audio") else "file"
        try:
            self.parts.append(_PART.validate_python({**fields, "type": kind, "media_type": media_type}))
        except ValidationError as error:
            self.note(f"{what}: it {beginning(error.errors()[0]['msg'], _WORDS_SHOWN)}.")
            return False
        return True


def _clean_type(media_type: object) -> str:
    text = media_type if isinstance(media_type, str) else ""
    text = text.lower().partition(";")[0].strip()
    return text if MEDIA_TYPE.fullmatch(text) else ""


def _type_of(content: bytes, declared: str) -> str:
    head = content[:HEAD_BYTES]
    if (not declared or conflict(declared, head)) and (found := sniffed(head)):
        return found
    return declared or "application/octet-stream"


def bytes_of(files: Sequence[Part] | None, stored: Mapping[str, str] | None = None) -> dict[str, str]:
    """The base64 of a message's files by their digests, as far as it is known. `stored`: of those that are stored."""
    known = dict(stored or {})
    for part in files or ():
        if isinstance(part, Media) and part.data is not None and (digest := part.digest):
            known[digest] = part.data
    return known


def marks_in(value: JsonValue) -> set[str]:
    """The digests of the files whose marks a value has."""
    if isinstance(value, str):
        return {found[1]} if (found := _MARKED.search(value)) else set()
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return set().union(*map(marks_in, inner))


def with_bytes(items: JsonValue, known: Mapping[str, str], labels: Mapping[str, str]) -> JsonValue:
    """A provider's items with bytes in the places of their marks. Items whose bytes are not known are described.

    Args:
        items: The provider's part of `provider_data`: a list of items, or the fields of a message.
        known: The base64 by digest.
        labels: The files' descriptions, by digest.
    """

    def described(value: JsonValue) -> str:
        missing = sorted(marks_in(value) - known.keys())
        return "\n".join(f"[{labels.get(each, 'a file')}: it cannot be shown to this model]" for each in missing)

    def whole(item: JsonValue, kind: str) -> JsonValue:
        text = described(item)
        return {"type": kind, "text": text} if text else _put_back(item, known)

    if isinstance(items, list):
        return [whole(item, LEFT_OUT) for item in items]
    if not isinstance(items, dict):
        return items
    fields = dict(items)
    told = [fields[LEFT_OUT]] if isinstance(fields.get(LEFT_OUT), str) else []
    for name, value in items.items():
        if name == "content" and isinstance(value, list):
            fields[name] = [whole(each, "text") for each in value]
        elif isinstance(value, list):
            fields[name] = [_put_back(each, known) for each in value if not described(each)]
            told += [text for each in value if (text := described(each))]
    return {**fields, LEFT_OUT: "\n".join(map(str, told))} if told else fields


def _put_back(value: JsonValue, known: Mapping[str, str]) -> JsonValue:
    if isinstance(value, str):
        found = _MARKED.search(value)
        return value[: found.start()] + known[found[1]] if found else value
    if isinstance(value, dict):
        return {name: _put_back(each, known) for name, each in value.items()}
    return [_put_back(each, known) for each in value] if isinstance(value, list) else value
