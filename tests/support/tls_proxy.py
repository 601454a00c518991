"""Temporal behind TLS, as in Temporal Cloud: server and client certificates, and API keys; metadata of calls is recorded.

A gRPC proxy in front of the dev server, so that the client under test uses real TLS and real gRPC.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

DAY = datetime.timedelta(days=1)


@dataclass
class Identity:
    """A certificate with its key, as files."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority and the certificates that it signed, in a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder, self._key = folder, ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        constraint = x509.BasicConstraints(ca=True, path_length=None)
        own = self._signed(self._name, self._key, 1).add_extension(constraint, critical=True)
        self.certificate = folder / f"{name}.pem"
        self.certificate.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def issue(self, *names: str, days: int = 1) -> Identity:
        """A certificate for these DNS names and addresses; with negative `days` it expired that many days ago."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0])])
        alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
        built = self._signed(subject, key, days).add_extension(alternatives, critical=False)
        stem = self._folder / f"{self._name.rfc4514_string()}-{names[0]}{days}"
        identity = Identity(stem.with_suffix(".pem"), stem.with_suffix(".key"))
        identity.certificate.write_bytes(
            built.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )
        plain = serialization.NoEncryption()
        identity.key.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        )
        return identity

    def _signed(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
        end = datetime.datetime.now(datetime.UTC) + days * DAY
        builder = x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
        return builder.not_valid_before(end - 9 * DAY).not_valid_after(end)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


@dataclass
class TlsProxy:
    """Its address, and the metadata of each received call."""

    address: str
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def sent(self, name: str) -> set[Any]:
        """The values of one metadata key over all calls; None for calls without it."""
        return {metadata.get(name) for _, metadata in self.calls}


class _Forward(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Every Temporal call is unary: requests and responses are forwarded as bytes."""

    def __init__(self, channel: grpc.aio.Channel, proxy: TlsProxy, api_key: str) -> None:
        self._channel, self._proxy, self._api_key = channel, proxy, api_key

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method, metadata = handler_call_details.method, dict(handler_call_details.invocation_metadata)

        async def forward(request: bytes, context: Any) -> Any:
            self._proxy.calls.append((method, metadata))
            if self._api_key and metadata.get("authorization") != f"Bearer {self._api_key}":
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "Request unauthorized.")
            try:
                return await self._channel.unary_unary(method)(request, timeout=context.time_remaining())
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))

        return grpc.unary_unary_rpc_method_handler(forward)


@asynccontextmanager
async def tls_proxy(
    behind: str, identity: Identity, *, clients: Authority | None = None, api_key: str = ""
) -> AsyncIterator[TlsProxy]:
    """Run a proxy for the server at `behind`; `clients`: the authority that must have signed the client's certificate."""
    credentials = grpc.ssl_server_credentials(
        [(identity.key.read_bytes(), identity.certificate.read_bytes())],
        clients.certificate.read_bytes() if clients else None,
        require_client_auth=clients is not None,
    )
    async with grpc.aio.insecure_channel(behind) as channel:
        server = grpc.aio.server()
        proxy = TlsProxy(f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', credentials)}")
        server.add_generic_rpc_handlers((_Forward(channel, proxy, api_key),))
        await server.start()
        try:
            yield proxy
        finally:
            await server.stop(grace=0)
