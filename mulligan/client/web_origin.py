"""What a server that browsers can reach checks: whether only this machine reaches it, and which pages may call it."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from mulligan.errors import DeclarationError

_DEFAULT_PORTS = {"http": 80, "https": 443}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host. A name other than localhost may resolve to any address."""
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return host == "localhost"


def parse_origin(text: str, page: str = "Temporal's UI", example: str = "http://localhost:8233") -> str:
    """An origin as browsers send it in the `Origin` header: in lower case, without path and default port.

    `page` and `example` are part of the error's sentence: whose origin is needed.

    Raises:
        DeclarationError: it is not an origin.
    """
    try:
        url = urlsplit(text)
        default = _DEFAULT_PORTS[url.scheme]
        if not url.hostname or "*" in text or "@" in text or url.path.strip("/") or url.query or url.fragment:
            raise ValueError(text)
        host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
        return f"{url.scheme}://{host}" + (f":{url.port}" if url.port not in (None, default) else "")
    except (ValueError, KeyError):
        raise DeclarationError(
            f"{text!r} is not an origin; give the scheme and the host of {page}, such as {example}."
        ) from None
