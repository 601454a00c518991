"""Media types: the type that bytes have by their first bytes, and the type that a file's name says."""

from __future__ import annotations

import re
from pathlib import PurePath

from mulligan.schema.url_parts import url_parts

MEDIA_TYPE = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,63}/[a-z0-9][a-z0-9!#$&^_.+-]{0,126}")
HEAD_BYTES = 64
"""How many of the first bytes are looked at."""

_ZIPPED = (
    "application/zip",
    "application/epub+zip",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation",
    "application/vnd.oasis.opendocument.text",
    "application/vnd.oasis.opendocument.spreadsheet",
)
_SIGNATURES: tuple[tuple[bytes, tuple[str, ...]], ...] = (
    (rb"\x89PNG\r\n\x1a\n", ("image/png",)),
    (rb"\xff\xd8\xff", ("image/jpeg", "image/jpg")),
    (rb"GIF8[79]a", ("image/gif",)),
    (rb"RIFF....WEBP", ("image/webp",)),
    (rb"BM....\0\0\0\0", ("image/bmp",)),
    (rb"II\*\0|MM\0\*", ("image/tiff",)),
    (rb"....ftyp(?:heic|heix|mif1|heif)", ("image/heic", "image/heif")),
    (rb"....ftypavif", ("image/avif",)),
    (rb"%PDF-", ("application/pdf",)),
    (rb"RIFF....WAVE", ("audio/wav", "audio/x-wav", "audio/wave")),
    (rb"ID3|\xff[\xfb\xf3\xf2\xfa]", ("audio/mpeg", "audio/mp3")),
    (rb"fLaC", ("audio/flac", "audio/x-flac")),
    (rb"OggS", ("audio/ogg", "audio/opus", "video/ogg", "application/ogg")),
    (rb"FORM....AIF[FC]", ("audio/aiff", "audio/x-aiff")),
    (rb"\xff[\xf1\xf9]", ("audio/aac",)),
    (rb"....ftyp(?:M4A|M4B)", ("audio/mp4", "audio/m4a", "audio/x-m4a")),
    (rb"....ftyp", ("video/mp4", "video/quicktime", "audio/mp4", "audio/m4a")),
    (rb"\x1a\x45\xdf\xa3", ("video/webm", "audio/webm", "video/x-matroska")),
    (rb"PK\x03\x04", _ZIPPED),
    (rb"\x1f\x8b", ("application/gzip",)),
)
"""The first bytes of a format, as a pattern, and the media types it has; the usual one comes first."""
_SIGNED = {media_type for _, media_types in _SIGNATURES for media_type in media_types}

_EXTENSIONS = {
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "svg": "image/svg+xml",
    "pdf": "application/pdf",
    "wav": "audio/wav",
    "mp3": "audio/mpeg",
    "flac": "audio/flac",
    "ogg": "audio/ogg",
    "m4a": "audio/mp4",
    "mp4": "video/mp4",
    "txt": "text/plain",
    "log": "text/plain",
    "md": "text/markdown",
    "csv": "text/csv",
    "html": "text/html",
    "py": "text/x-python",
    "json": "application/json",
    "xml": "application/xml",
    "yaml": "application/yaml",
    "yml": "application/yaml",
    "toml": "application/toml",
    "zip": _ZIPPED[0],
    "docx": _ZIPPED[2],
    "xlsx": _ZIPPED[3],
    "pptx": _ZIPPED[4],
}
_TEXTS = ("application/json", "application/xml", "application/yaml", "application/toml", "image/svg+xml")


def sniffed(head: bytes) -> str | None:
    """The usual media type of the format that begins with these bytes; None if it is none of those known here."""
    return next((types[0] for pattern, types in _SIGNATURES if re.match(pattern, head, re.DOTALL)), None)


def type_of_name(name: str) -> str | None:
    """The media type that the extension of a file's name or of a URL's path says; None if it is not known here."""
    path = url_parts(name).path if "://" in name else name
    return _EXTENSIONS.get(PurePath(path).suffix.lstrip(".").lower())


def is_text(media_type: str) -> bool:
    """Whether the type is one of texts in UTF-8."""
    return media_type.startswith("text/") or media_type in _TEXTS


def conflict(media_type: str, head: bytes) -> str | None:
    """Why bytes that begin with `head` cannot be of a media type, as a phrase; None if they can."""
    matching = next((types for pattern, types in _SIGNATURES if re.match(pattern, head, re.DOTALL)), None)
    if matching is not None and media_type not in matching:
        return f"its bytes are {matching[0]}"
    is_signed = media_type in _SIGNED or media_type.startswith(("image/", "audio/", "video/"))
    if matching is None and is_signed and not is_text(media_type):
        return "its first bytes are those of no such format"
    if is_text(media_type) and b"\0" in head:
        return "its bytes are not text"
    return None
