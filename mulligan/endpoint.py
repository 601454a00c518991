"""Where models are served: endpoints, and the operator's file of them."""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mulligan.errors import DeclarationError

ENDPOINT_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")

MAX_FILE_BYTES = 1_000_000
MAX_ENDPOINTS = 1_000
"""Of one file."""
FIELDS = ("base_url", "api_key_env", "headers", "timeout", "kind", "api_version", "region", "project")
"""The keys of an endpoint in the operator's file."""
KINDS = {
    "azure": ("base_url", ("api_version",)),
    "bedrock": ("region", ("region",)),
    "vertex": ("project and region", ("project", "region")),
}
"""The kinds of endpoints of clouds: what each needs, as a text, and which fields are only for it."""
_EXAMPLE = "such as http://localhost:11434/v1"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,99}")
"""A version, a region or a project of a cloud."""
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A header's name (RFC 9110, 5.6.2)."""
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""A variable of the environment in a header's value."""


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An address that serves models, with the key that it takes. A provider is created for each endpoint that is used.

    Args:
        name: Its name in `provider@NAME:model`.
        base_url: The URL that the provider's paths are appended to. None: the provider's default address.
        api_key_env: The environment variable of the worker that has the key. None: the endpoint takes no key.
        headers: Sent with each request. `${NAME}` in a value is replaced by that environment variable of the worker.
        timeout: Seconds for one answer at most; the agent's `model_timeout` applies too. None: only the latter.
        kind: `azure` (OpenAI's models), `bedrock` (Anthropic's) or `vertex` (Google's and Anthropic's): requests are sent
            and signed as that cloud wants it. Without `api_key_env`, the login is that of the worker's environment.
        api_version: Azure's, for its older API; None: its API of version 1.
        region: Of Bedrock or Vertex.
        project: Of Vertex.

    Raises:
        DeclarationError: a value is invalid.
    """

    name: str
    base_url: str | None = None
    api_key_env: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float | None = None
    kind: str | None = None
    api_version: str | None = None
    region: str | None = None
    project: str | None = None

    def __post_init__(self) -> None:
        context = f"the endpoint {str(self.name)[:80]!r}"
        if not isinstance(self.name, str) or not ENDPOINT_NAME.fullmatch(self.name):
            raise DeclarationError(f"{context}: a name has letters, digits, '-', '_' and '.', 64 at most.")
        if self.base_url is not None:
            check_url(self.base_url, context)
        if self.api_key_env is not None and not (
            isinstance(self.api_key_env, str) and _VARIABLE.fullmatch(self.api_key_env)
        ):
            # The value is not quoted: it may be the key itself.
            raise DeclarationError(
                f"{context}: api_key_env must be the name of an environment variable, such as LLAMA_KEY, not the key itself."
            )
        _check_headers(self.headers, context)
        timeout = self.timeout
        if timeout is not None and (
            isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < math.inf
        ):
            raise DeclarationError(f"{context}: timeout is {timeout!r}; it must be more than 0 seconds.")

        self._check_kind(context)

    def _check_kind(self, context: str) -> None:
        if self.kind is not None and self.kind not in KINDS:
            raise DeclarationError(f"{context}: kind is {str(self.kind)[:80]!r}; known are {', '.join(KINDS)}.")
        needed, own = KINDS[self.kind] if self.kind else ("", ())
        for name in ("api_version", "region", "project"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not _PLACE.fullmatch(value)):
                raise DeclarationError(f"{context}: {name} is {str(value)[:80]!r}, which no {name} can be.")
            if value is not None and name not in own:
                raise DeclarationError(
                    f"{context}: {name} is not for an endpoint of the kind {self.kind!r}; leave it out."
                )
        if self.kind and any(getattr(self, name) is None for name in needed.split(" and ")):
            raise DeclarationError(f"{context}: an endpoint of the kind {self.kind!r} needs {needed}.")
        if self.kind == "vertex" and self.api_key_env is not None:
            raise DeclarationError(
                f"{context}: Vertex takes no key; leave api_key_env out, and set GOOGLE_APPLICATION_CREDENTIALS."
            )

    def api_key(self) -> str | None:
        """The key, from the environment of this process; "" if the variable is not set. None: no key is needed."""
        return None if self.api_key_env is None else os.environ.get(self.api_key_env, "").strip()

    def resolved_headers(self) -> dict[str, str]:
        """The headers with the values of their environment variables."""
        return {
            name: _REFERENCE.sub(lambda match: os.environ.get(match[1], ""), value)
            for name, value in self.headers.items()
        }

    def variables(self) -> list[str]:
        """The environment variables that it needs."""
        names = [self.api_key_env] if self.api_key_env else []
        names += [name for value in self.headers.values() for name in _REFERENCE.findall(value)]
        return list(dict.fromkeys(names))

    def missing_variables(self) -> list[str]:
        """The environment variables that it needs and that this process does not have."""
        return [name for name in self.variables() if not os.environ.get(name, "").strip()]

    def server(self) -> tuple[str, int] | None:
        """The host and port of its address; None where the address is the provider's default."""
        if self.base_url is None:
            return None
        parts = urlsplit(self.base_url)
        return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def merge_endpoints(endpoints: Iterable[Endpoint]) -> dict[str, Endpoint]:
    """The endpoints by their names.

    Raises:
        DeclarationError: two different ones have the same name.
    """
    merged: dict[str, Endpoint] = {}
    for endpoint in endpoints:
        if merged.setdefault(endpoint.name, endpoint) != endpoint:
            raise DeclarationError(
                f"two Models have different endpoints of the name {endpoint.name!r} (an address, key variable, headers or "
                "timeout differ); give one of them another name: Model('provider@NAME:…', …)."
            )
    return merged


def read_endpoints(file: str) -> dict[str, Endpoint]:
    """The endpoints of the operator's file by their names; none if `file` is empty.

    Raises:
        DeclarationError: the file cannot be read, or has something else than endpoints.
    """
    if not file:
        return {}
    context = f"MULLIGAN_ENDPOINTS names {file}"
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise DeclarationError(f"{context}, which has more than {MAX_FILE_BYTES:,} bytes.")
        tables = tomllib.loads(data.decode())
    except OSError as error:
        raise DeclarationError(f"{context}, which cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        # TOML's errors name a line and quote one character of it at most.
        raise DeclarationError(f"{context}, which is not TOML: {error}.") from None
    if len(tables) > MAX_ENDPOINTS:
        raise DeclarationError(f"{context}, which has {len(tables):,} endpoints; the limit is {MAX_ENDPOINTS:,}.")
    try:
        return {name: _from_table(name, table) for name, table in tables.items()}
    except DeclarationError as error:
        raise DeclarationError(f"{context}: {error}") from None


def _from_table(name: str, table: Any) -> Endpoint:
    form = f'[{name}] with base_url = "https://…/v1" and api_key_env = "NAME"'
    if not isinstance(table, dict):
        raise DeclarationError(f"{name[:80]!r} is not a table; write an endpoint as {form}.")
    if unknown := [key for key in table if key not in FIELDS]:
        hint = " The key itself is not written here: api_key_env names a variable." if "key" in unknown[0] else ""
        raise DeclarationError(
            f"the endpoint {name[:80]!r} has {unknown[0][:80]!r}; known are {', '.join(FIELDS)}.{hint}"
        )
    if not {"base_url", "api_key_env", "kind"} & table.keys():
        raise DeclarationError(f"the endpoint {name[:80]!r} has neither base_url nor api_key_env; write it as {form}.")
    return Endpoint(name=name, **table)


def check_address(url: str, subject: str) -> None:
    """Check that a URL has a scheme and a host that requests can be sent to. A password in it is not quoted.

    `subject` begins the error's sentence.

    Raises:
        DeclarationError: it has not.
    """
    try:
        parts = urlsplit(url)
        is_address = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        is_address = False
    if not is_address or re.search(r"[\s\x00-\x1f]", url):
        quoted = "not a valid address" if "@" in url else repr(url[:200])
        raise DeclarationError(f"{subject} is {quoted}; it must be an http:// or https:// URL, {_EXAMPLE}.")


def check_url(url: object, context: str) -> None:
    """Check the address of an endpoint. A password in it is not quoted."""
    if not isinstance(url, str):
        raise DeclarationError(f"{context}: base_url has the type {type(url).__name__}; it must be a text, {_EXAMPLE}.")
    try:
        has_login = "@" in urlsplit(url).netloc
    except ValueError:
        has_login = "@" in url
    if has_login:
        raise DeclarationError(f"{context}: base_url has a user or a password in it; use api_key_env or headers.")
    check_address(url, f"{context}: base_url")
    parts = urlsplit(url)
    if parts.query or parts.fragment:
        raise DeclarationError(f"{context}: base_url has a '?' or '#'; it must be an address without them, {_EXAMPLE}.")


def _check_headers(headers: object, context: str) -> None:
    """Check the headers of an endpoint. No value is quoted: it may be secret."""
    if not isinstance(headers, Mapping):
        raise DeclarationError(
            f"{context}: headers has the type {type(headers).__name__}; it must be a table of names and values."
        )
    for name, value in headers.items():
        if not isinstance(name, str) or not _HEADER.fullmatch(name):
            raise DeclarationError(f"{context}: {str(name)[:80]!r} is not a header's name.")
        if not isinstance(value, str) or not value.isascii() or not value.isprintable():
            raise DeclarationError(f"{context}: the value of the header {name!r} must be a text of printable ASCII.")
