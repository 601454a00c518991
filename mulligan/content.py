"""The parts of a prompt, a message and a tool's result: text, images, files and audio.

They are in Temporal's history as JSON, so only optional fields may be added, and nothing renamed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from mulligan.schema.media_types import HEAD_BYTES, MEDIA_TYPE, conflict, is_text, sniffed, type_of_name
from mulligan.schema.optional_field import optional_field
from mulligan.schema.url_parts import url_parts
from mulligan.schema.well_formed import WellFormedText

MAX_CONTENT_BYTES = 20_000_000
"""Bytes of one image, file or recording: what providers accept in a request."""
MAX_PARTS = 100
"""Parts of one message or result."""
MAX_URL_CHARS = 8_192
MAX_NAME_CHARS = 255
_REF = re.compile(r"sha256:[0-9a-f]{64}")
_DATA_URL = re.compile(r"data:([^;,]*)(?:;[^;,]*)*;base64,", re.IGNORECASE)


class ContentError(Exception):
    """Bytes cannot be used as content: they are too many, or not of the declared type. The message says which and why."""


class Text(BaseModel):
    """A part that is text."""

    type: Literal["text"] = Field(default_factory=lambda: "text")
    text: WellFormedText
    """The text."""

    @model_validator(mode="after")
    def _write_type(self) -> Self:
        # Also where only fields that were set are written.
        self.model_fields_set.add("type")
        return self


class Media(BaseModel):
    """A part with content of a media type, by one of `url`, `data` and `ref`. Use `Image`, `File` or `Audio`."""

    type: str
    """`image`, `file` or `audio`."""
    media_type: str = Field("", validation_alias=AliasChoices("media_type", "mediaType"))
    """Such as `image/png`. If it is left out, it is read from the bytes, or from the extension of the name or the URL."""
    url: str | None = optional_field()
    """`https://…`: the model's provider fetches it; Mulligan never does."""
    data: str | None = optional_field()
    """The bytes in base64. Bytes are accepted in Python."""
    ref: str | None = optional_field()
    """`sha256:` and the digest of the bytes, which are in the content storage."""
    name: WellFormedText | None = optional_field(max_length=MAX_NAME_CHARS)
    """The file's name, for the model and for people."""
    size: int | None = optional_field(ge=0)
    """The number of bytes, beside a `ref`."""

    @classmethod
    def from_bytes(cls, data: bytes, media_type: str = "", *, name: str | None = None) -> Self:
        """A part with these bytes.

        Args:
            data: The bytes.
            media_type: Such as `image/png`. If it is left out, it is read from the bytes, or from the extension of the name.
            name: The file's name.

        Raises:
            ContentError: the bytes are too many, or are not of the media type.
        """
        encoded = base64.b64encode(data).decode()
        try:
            return cls.model_validate({"data": encoded, "media_type": media_type, "name": name})
        except ValidationError as error:
            kind = cls.__name__.lower()
            raise ContentError(f"The {kind} {name or ''} {error.errors()[0]['msg']}.".replace("  ", " ")) from None

    @classmethod
    def from_path(cls, path: str | Path, media_type: str = "") -> Self:
        """A part with the bytes of a file, and its name.

        Args:
            path: The file.
            media_type: As for `from_bytes`.

        Raises:
            OSError: the file cannot be read.
            ContentError: the bytes are too many, or are not of the media type.
        """
        path = Path(path)
        with path.open("rb") as file:
            data = file.read(MAX_CONTENT_BYTES + 1)
        return cls.from_bytes(data, media_type, name=path.name)

    @property
    def content(self) -> bytes:
        """The bytes of `data`; empty without it."""
        return base64.b64decode(self.data) if self.data else b""

    @property
    def data_url(self) -> str:
        """`data` as a URL."""
        return f"data:{self.media_type};base64,{self.data or ''}"

    @property
    def byte_count(self) -> int | None:
        """The number of bytes; None if it is not known, as of a URL."""
        return self.size if self.data is None else len(self.data) * 3 // 4 - self.data[-2:].count("=")

    @property
    def digest(self) -> str | None:
        """`sha256:` and the digest of the bytes; None for a URL."""
        return digest_of(self.content) if self.data is not None else self.ref

    @property
    def is_text(self) -> bool:
        """Whether the content is text in UTF-8."""
        return is_text(self.media_type)

    @property
    def label(self) -> str:
        """Describe the content for models and people: `image "photo.png" (image/png, 12,345 bytes)`."""
        name = f' "{self.name}"' if self.name else ""
        count = self.byte_count
        return f"{self.type}{name} ({self.media_type}, {self.url if count is None else f'{count:,} bytes'})"

    def without_data(self) -> Self:
        """The part with the digest and the number of its bytes in place of `data`."""
        return self if self.data is None else self.referring_to(digest_of(self.content))

    def referring_to(self, ref: str) -> Self:
        """The part with a reference to its bytes in place of `data`.

        Args:
            ref: The reference.
        """
        return self.model_copy(update={"data": None, "ref": ref, "size": self.byte_count})

    @field_validator("data", mode="before")
    @classmethod
    def _encoded(cls, value: object) -> object:
        return base64.b64encode(value).decode() if isinstance(value, (bytes, bytearray)) else value

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.url is not None and (inline := _DATA_URL.match(self.url)):
            self.media_type = self.media_type or inline[1].lower()
            self.url, self.data = None, inline.string[inline.end() :]
        if sum(each is not None for each in (self.url, self.data, self.ref)) != 1:
            raise _fault('needs exactly one of "url", "data" and "ref"')
        if self.size is not None and self.ref is None:
            raise _fault('has a "size", which goes with a "ref" only')
        head = self._check_data() if self.data is not None else None
        if not self.media_type:
            self.media_type = (
                (sniffed(head) if head is not None else None) or type_of_name(self.name or self.url or "") or ""
            )
        self.media_type = self.media_type.lower().partition(";")[0].strip()
        self._check_media_type(head)
        if self.url is not None and not _is_web_address(self.url):
            raise _fault(f'has a "url" that is not an http(s) URL of at most {MAX_URL_CHARS:,} characters')
        if self.ref is not None and not _REF.fullmatch(self.ref):
            raise _fault('has a "ref" that is not "sha256:" and 64 hexadecimal digits')
        if self.size is not None and self.size > MAX_CONTENT_BYTES:
            raise _too_large(self.size)
        self.model_fields_set.add("type")  # written also where only fields that were set are
        return self

    def _check_data(self) -> bytes:
        """The first bytes of `data`."""
        data = self.data or ""
        if len(data) // 4 * 3 > MAX_CONTENT_BYTES + 2:
            raise _too_large(len(data) // 4 * 3)
        try:
            head = binascii.a2b_base64(data, strict_mode=True)
        except (binascii.Error, ValueError):
            raise _fault('has "data" that is not base64') from None
        if not head:
            raise _fault('has no bytes in its "data"')
        if len(head) > MAX_CONTENT_BYTES:
            raise _too_large(len(head))
        return head[:HEAD_BYTES]

    def _check_media_type(self, head: bytes | None) -> None:
        if not self.media_type:
            raise _fault('is of an unknown type; say which with "media_type"')
        if not MEDIA_TYPE.fullmatch(self.media_type):
            raise _fault(f'has the "media_type" {self.media_type[:80]!r}; it must be one such as "image/png"')
        if self.type != "file" and not self.media_type.startswith(f"{self.type}/"):
            raise _fault(f'has the "media_type" {self.media_type!r}; that of an {self.type} begins with "{self.type}/"')
        if head is not None and (why := conflict(self.media_type, head)):
            raise _fault(f'has the "media_type" {self.media_type!r}, but {why}')


class Image(Media):
    """An image, by its bytes or its URL."""

    type: Literal["image"] = Field(default_factory=lambda: "image")


class File(Media):
    """A file: a PDF, or any other."""

    type: Literal["file"] = Field(default_factory=lambda: "file")


class Audio(Media):
    """A recording."""

    type: Literal["audio"] = Field(default_factory=lambda: "audio")


Part = Annotated[Text | Image | File | Audio, Field(discriminator="type")]
"""A part of a message or of a tool's result."""


def _with_texts(value: object) -> object:
    """Replace each text by a `Text`: in Python, one may stand for the other."""
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [{"type": "text", "text": each} if isinstance(each, str) else each for each in value]
    return value


Parts = Annotated[list[Part], Field(min_length=1, max_length=MAX_PARTS), BeforeValidator(_with_texts)]
"""Several parts. In Python, a text may stand for a `Text`."""
_PARTS: TypeAdapter[list[Part]] = TypeAdapter(Parts)
GivenParts = Annotated[Parts, WrapValidator(lambda value, _: _PARTS.validate_python(value, extra="forbid"))]
"""Parts in a request, whose unknown fields are refused. Whoever reads parts leaves out what a later version has added."""


def text_of(parts: Iterable[Text | Media]) -> str:
    """The text of parts alone."""
    return "\n\n".join(part.text for part in parts if isinstance(part, Text))


def media_of(parts: Iterable[Text | Media] | None) -> list[Media]:
    """The parts that are not text."""
    return [part for part in parts or () if isinstance(part, Media)]


def described(parts: str | Iterable[Text | Media] | None) -> str:
    """The text of parts, with each of the others as its label in brackets; a text is returned unchanged."""
    if parts is None or isinstance(parts, str):
        return parts or ""
    return "\n\n".join(part.text if isinstance(part, Text) else f"[{part.label}]" for part in parts)


def shown_content(parts: Sequence[Part] | None) -> list[Part]:
    """Parts without bytes, for those who follow a run."""
    return [part if isinstance(part, Text) else part.without_data() for part in parts or ()]


def digest_of(data: bytes) -> str:
    """The `ref` of content."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def content_file(path: str | Path) -> Image | File | Audio:
    """The part for a file, by its bytes and its name: an image, audio, or another file.

    Raises:
        ContentError: it cannot be read, is too large, or is of an unknown type.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONTENT_BYTES + 1)
    except OSError as error:
        raise ContentError(f"{path} cannot be read: {error.strerror}.") from None
    media_type = sniffed(data[:HEAD_BYTES])
    named = type_of_name(path.name)
    if named is not None and (media_type is None or conflict(named, data[:HEAD_BYTES]) is None):
        media_type = named
    if not data:
        raise ContentError(f"{path} is empty.")
    if len(data) > MAX_CONTENT_BYTES:
        raise ContentError(f"{path} has more than {MAX_CONTENT_BYTES:,} bytes, the most that a part may have.")
    if media_type is None:
        raise ContentError(f"{path} is of an unknown type: neither its first bytes nor its name say which.")
    if named is not None and (why := conflict(named, data[:HEAD_BYTES])):
        raise ContentError(f"{path} is {named} by its name, but {why}.")
    kind: type[Image] | type[File] | type[Audio] = {"image": Image, "audio": Audio}.get(  # type: ignore[assignment]
        media_type.partition("/")[0], File
    )
    return kind.from_bytes(data, media_type, name=path.name)


def _is_web_address(url: str) -> bool:
    return len(url) <= MAX_URL_CHARS and url.startswith(("https://", "http://")) and bool(url_parts(url).netloc)


def _fault(says: str) -> PydanticCustomError:
    # The braces would be read as a template.
    return PydanticCustomError("content", "{says}", {"says": says})


def _too_large(size: int) -> PydanticCustomError:
    return _fault(f"has {size:,} bytes; the limit for a part is {MAX_CONTENT_BYTES:,}")
