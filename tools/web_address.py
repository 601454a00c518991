"""Which addresses written by a model a tool may connect to: the public internet, and what the operator allows.

A page that the model read may have told it which address to write. The rules are those of OWASP's cheat sheet
on server-side request forgery and of IANA's registries of special-purpose addresses (RFC 6890). A name is resolved once
and all its addresses are checked; who connects must connect to one of these, never to the name, which could resolve to
another address by then (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

import httpx2

from mulligan.tool import ToolError

MAX_URL = 4_000
"""Characters of a URL."""

_NAME = re.compile(r"(?=.{1,253}$)[a-z0-9_]([a-z0-9_-]{0,62})(\.[a-z0-9_][a-z0-9_-]{0,62})*")
_PUBLIC_V6, _NAT64 = IPv6Network("2000::/3"), IPv6Network("64:ff9b::/96")
# Some supported Python's `is_global` counts these as public; the last one is Azure's internal service address.
_NOT_PUBLIC = [
    ip_network(text)
    for text in (
        *("192.0.0.0/24", "192.88.99.0/24", "100.64.0.0/10", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"),
        "168.63.129.16/32",
    )
]

Address = IPv4Address | IPv6Address


@dataclass(frozen=True)
class Target:
    """A checked URL. `host` has no brackets and no dot at its end, and is IDNA-encoded."""

    url: httpx2.URL
    host: str
    port: int


def target_of(text: str, base: httpx2.URL | None = None) -> Target:
    """Parse a URL that a model wrote, or that a server sent in a redirect from `base`.

    Raises:
        ToolError: it is not a URL, is not for http or https, has credentials, or a host in an ambiguous notation.
    """
    rule = "Give a full address, for instance 'https://example.com/page'."
    text = text.strip().replace(" ", "%20")
    faults = {
        f"is longer than {MAX_URL:,} characters": len(text) > MAX_URL,
        # Some programs read a backslash as a slash, so that two programs read different hosts in one URL.
        "contains control characters or a backslash": re.search(
            r"[\x00-\x20\x7f-\x9f\u2028\u2029\ud800-\udfff\\]", text
        )
        is not None,
        "contains a user name or password, and none are sent": re.match(r"[^/?#]*//[^/?#]*@", text) is not None,
    }
    if fault := next((fault for fault, is_so in faults.items() if is_so), None):
        raise ToolError(f"The address {fault}. {rule}")
    try:
        url = base.join(text) if base is not None else httpx2.URL(text)
        host = url.raw_host.decode("ascii").removesuffix(".")
    except (httpx2.InvalidURL, ValueError):  # ValueError: idna's
        raise ToolError(f"The address '{text[:200]}' is not a URL. {rule}") from None
    if url.scheme not in ("http", "https"):
        raise ToolError(f"Only http and https can be fetched, and the address has '{url.scheme[:20]}'. {rule}")
    if url.userinfo:
        raise ToolError(f"The address contains a user name or password, and none are sent. {rule}")
    # ':' is in IPv6 addresses alone; a zone ('%') names a link of this very machine.
    if not (_NAME.fullmatch(host) or (":" in host and "%" not in host)):
        raise ToolError(f"The address has no valid host: '{host[:100]}'. {rule}")
    # Programs read '0x7f.1', '017700000001' and '2130706433' as 127.0.0.1; no name ends in a number (URL standard).
    if re.fullmatch(r"([^:]*\.)?(\d+|0x[0-9a-f]*)", host) and not re.fullmatch(
        r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){3}", host
    ):
        raise ToolError(f"The host '{host[:100]}' is not a name. Write an IPv4 address as four decimal numbers.")
    port = url.port if url.port is not None else {"http": 80, "https": 443}[url.scheme]
    if not 0 < port < 65_536:
        raise ToolError(f"The address has no valid port: {port}. {rule}")
    return Target(url.copy_with(fragment=None), host, port)


def is_public(address: Address) -> bool:
    """Whether it is an address of the public internet, and so is the IPv4 address that it may stand for."""
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:
            return False
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address in _NAT64:
            return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
        # 6to4 and Teredo, which contain an IPv4 address too, are in _NOT_PUBLIC as a whole: nobody serves pages there.
        if address not in _PUBLIC_V6:
            return False
    special = address.is_multicast or address.is_reserved or any(address in network for network in _NOT_PUBLIC)
    return address.is_global and not special


def _is_allowed(target: Target, address: Address) -> bool:
    """Whether the operator allows this host or address by MULLIGAN_FETCH_ALLOW."""
    plain = getattr(address, "ipv4_mapped", None) or address
    for entry in filter(None, (part.strip().lower() for part in os.environ.get("MULLIGAN_FETCH_ALLOW", "").split(","))):
        try:
            if plain in ip_network(entry.strip("[]"), strict=False):
                return True
            continue
        except ValueError:
            parts = re.fullmatch(r"(\[[0-9a-f:.]+\]|[^\s:/\[\]]+)(?::(\d{1,5}))?", entry)
        if parts is None:
            raise ToolError(
                "No page can be fetched: MULLIGAN_FETCH_ALLOW has an entry that is neither a host nor a network."
            )
        host = parts[1].strip("[]").removesuffix(".")
        if host in (target.host, str(plain)) and parts[2] in (None, str(target.port)):
            return True
    return False


async def addresses_of(target: Target) -> list[Address]:
    """The addresses of a host, in the resolver's order, three at most. A tool may connect to each of them.

    Raises:
        ToolError: it has none, or one that is neither public nor allowed by the operator.
    """
    try:
        addresses: list[Address] = [ip_address(target.host)]
    except ValueError:
        try:
            entries = await asyncio.get_running_loop().getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise ToolError(f"There is no host '{target.host[:100]}': its name has no address.") from None
        addresses = list(dict.fromkeys(ip_address(entry[4][0]) for entry in entries))
    # All of them: the result must not depend on which of the addresses is used.
    if not addresses or not all(_is_allowed(target, address) or is_public(address) for address in addresses):
        raise ToolError(
            f"'{target.host[:100]}' may not be fetched: it is not on the public internet. "
            "Only the operator can allow it, by MULLIGAN_FETCH_ALLOW."
        )
    return addresses[:3]
