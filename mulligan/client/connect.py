"""Connects to Temporal, with the settings of Temporal's own environment configuration."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import re
import time
from datetime import timedelta
from typing import Any

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import (
    Client,
    WorkflowQueryFailedError,
)
from temporalio.converter import DataConverter
from temporalio.envconfig import ClientConfig, ClientConnectConfig
from temporalio.service import RPCError, RPCStatusCode

from mulligan.client.converter import data_converter
from mulligan.client.settings import settings
from mulligan.client.start_interceptor import StartInterceptor
from mulligan.errors import DeclarationError

DEFAULT_ADDRESS = "localhost:7233"
EXIT_SECONDS = 0.05
FAULTS = {
    "InvalidCertificate(UnknownIssuer": "has a certificate of an authority that is not trusted here; set "
    "TEMPORAL_TLS_SERVER_CA_CERT_PATH to the authority's certificate",
    "InvalidCertificate(NotValidForName": "has a certificate for another name; set TEMPORAL_TLS_SERVER_NAME to that name",
    "InvalidCertificate(Expired": "has a certificate that has expired",
    "InvalidContentType": "does not speak TLS, which a TEMPORAL_TLS setting or an API key asks for",
    "InconsistentKeys": "was not called: TEMPORAL_TLS_CLIENT_KEY_PATH is not the key of TEMPORAL_TLS_CLIENT_CERT_PATH",
    "code: Unauthenticated": "refuses us; see TEMPORAL_API_KEY and TEMPORAL_NAMESPACE",
    "code: PermissionDenied": "refuses us; see TEMPORAL_API_KEY and TEMPORAL_NAMESPACE",
    "tonic::transport::Error(Transport, hyper": "ended the connection; it may want TLS (TEMPORAL_TLS=true), or a client "
    "certificate that it trusts (TEMPORAL_TLS_CLIENT_CERT_PATH and TEMPORAL_TLS_CLIENT_KEY_PATH)",
}
"""Explanations of errors of a server that can be reached, by a part of temporalio's error message."""
_CAUSE = re.compile(r'(?:message|error): "([^"]+)"')
"""In temporalio's text, which is a Rust value with the values that caused it: the words of the system."""


class CannotConnectError(RuntimeError):
    """No server answers, or it refuses the connection. The message is temporalio's, whose own error has no type."""


async def connect(address: str | None = None, **options: Any) -> Client:
    """Connect to Temporal.

    Address, namespace, API key and TLS come from the environment (`TEMPORAL_ADDRESS` …) and `temporal.toml`, by
    Temporal's own rules. With the argument `address` nothing is read from there, so no key of a profile is sent to it.
    `options` are those of `temporalio.client.Client.connect`, and override the environment.

    Raises:
        CannotConnectError: no server answers there, or it refuses the connection. It is a RuntimeError.
        DeclarationError: a setting of Mulligan or of Temporal is invalid.
    """
    config: dict[str, Any] = {"target_host": address or DEFAULT_ADDRESS}
    if address is None:
        config |= _load_connect_config()
    config = {"data_converter": configured_converter(), **config, **options}
    config["interceptors"] = [*config.get("interceptors", ()), StartInterceptor()]
    _wait_at_exit()
    try:
        return await Client.connect(**config)
    except ValueError as error:
        raise DeclarationError(f"Temporal's settings cannot be used: {error}.") from None
    except RuntimeError as error:
        raise CannotConnectError(str(error)) from None


@functools.cache
def _wait_at_exit() -> None:
    """Make the interpreter wait a moment before it ends: temporalio's threads are done with Python then.

    temporalio 1.35 on Python 3.11 aborts a process that ends right after a call of its client ("PyGILState_Release: thread
    state … must be current"): 8 of 120 processes on a busy machine, and none of 120 that waited.
    """
    atexit.register(time.sleep, EXIT_SECONDS)


async def check_namespace(client: Client) -> None:
    """Check that the client's namespace exists. Any other error of the server is left to the calls that follow.

    Raises:
        DeclarationError: it does not exist.
    """
    request = DescribeNamespaceRequest(namespace=client.namespace)
    try:
        await client.workflow_service.describe_namespace(request, timeout=timedelta(seconds=10))
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            address = client.service_client.config.target_host
            raise DeclarationError(
                f"the Temporal server at {address} has no namespace {client.namespace!r}; set TEMPORAL_NAMESPACE to one "
                f"that exists, or create it: `temporal operator namespace create -n {client.namespace}`."
            ) from None


def _load_connect_config() -> ClientConnectConfig:
    """The connection settings of the environment and of `temporal.toml`."""
    try:
        config = ClientConfig.load_client_connect_config()
    except OSError as error:
        raise DeclarationError(f"Temporal's settings name {error.filename}: {error.strerror}.") from None
    except (RuntimeError, ValueError) as error:
        # Only the first line: the others quote the file, which may contain a key.
        raise DeclarationError(f"Temporal's settings cannot be read: {str(error).splitlines()[0]}.") from None
    if "api_key" in config:
        # With a newline at the end, as in many Kubernetes secrets, temporalio would send no key at all.
        config["api_key"] = config["api_key"].strip()
    return config


def configured_converter() -> DataConverter:
    """Mulligan's data converter, with encryption and external storage if the settings have them."""
    configured, converter = settings(), data_converter
    if keys := configured.encryption_keys.get_secret_value():
        from mulligan.client.encryption import parse_keys, with_encryption

        converter = with_encryption(converter, parse_keys(keys), strict=configured.encryption_strict)
    if configured.external_storage:
        from mulligan.client.external_storage import external_storage

        converter = dataclasses.replace(converter, external_storage=external_storage(configured.external_storage))
    return converter


def configured_address() -> str:
    """The address that `connect()` uses."""
    return ClientConfig.load_client_connect_config().get("target_host") or DEFAULT_ADDRESS


def explain_connection_error(error: BaseException) -> str:
    """A sentence for the terminal about an error of `connect()`: the address, the reason, and what to do."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    for words, fault in FAULTS.items():
        if words in reason:
            return f"the Temporal server at {configured_address()} {fault}."
    if causes := _CAUSE.findall(reason):
        reason = causes[-1]
    return (
        f"no Temporal server answers at {configured_address()} ({reason}). Start one with `uv run mulligan dev`, "
        "or set TEMPORAL_ADDRESS to yours."
    )


def explain_unreadable_data(error: BaseException) -> str:
    """A sentence for the terminal about data that cannot be decrypted or read from external storage, with what to do.

    Empty for any other error.
    """
    text = str(error)
    if "TMPRL1105" in text:
        return "a part of this run is in external storage; set MULLIGAN_EXTERNAL_STORAGE to that of its worker."
    if text.startswith("No driver found with name 'mulligan."):
        return "a part of this run is in another kind of external storage than MULLIGAN_EXTERNAL_STORAGE names."
    if type(error).__name__ == "StorageError":
        return text
    if text.startswith("S3StorageDriver "):
        return f"{text}: {error.__cause__}." if error.__cause__ else text
    if "Unknown payload encoding binary/encrypted" in text:
        return "this run is encrypted; set MULLIGAN_ENCRYPTION_KEYS to the keys of its worker."
    if isinstance(error, ValueError) and text.startswith("A payload "):
        return text
    # temporalio does not decrypt the failure of a query.
    if isinstance(error, WorkflowQueryFailedError) and text == "Encoded failure":
        return "the worker could not answer; its MULLIGAN_ENCRYPTION_KEYS may lack the first key of this command's."
    return ""
