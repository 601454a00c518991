"""A connection to Temporal, set up as Temporal's own environment configuration says."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from opentelemetry import propagate
from temporalio.api.common.v1 import Payload
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    StartWorkflowInput,
    WorkflowHandle,
    WorkflowQueryFailedError,
)
from temporalio.converter import DataConverter, JSONPlainPayloadConverter
from temporalio.envconfig import ClientConfig, ClientConnectConfig

from mulligan.client.converter import data_converter
from mulligan.client.settings import settings
from mulligan.errors import DeclarationError
from mulligan.wire.run_context import TRACE_HEADER

__all__ = ["DEFAULT_ADDRESS", "configured_converter", "connect", "data_converter"]

DEFAULT_ADDRESS = "localhost:7233"
FAULTS = {
    "InvalidCertificate(UnknownIssuer": "has a certificate of an authority that is not trusted here; set "
    "TEMPORAL_TLS_SERVER_CA_CERT_PATH to the authority's certificate",
    "InvalidCertificate(NotValidForName": "has a certificate for another name; set TEMPORAL_TLS_SERVER_NAME to that name",
    "InvalidCertificate(Expired": "has a certificate that has expired",
    "InvalidContentType": "does not speak TLS, which a TEMPORAL_TLS setting or an API key asks for",
    "InconsistentKeys": "was not asked: TEMPORAL_TLS_CLIENT_KEY_PATH is not the key of TEMPORAL_TLS_CLIENT_CERT_PATH",
    "code: Unauthenticated": "refuses us; see TEMPORAL_API_KEY and TEMPORAL_NAMESPACE",
    "code: PermissionDenied": "refuses us; see TEMPORAL_API_KEY and TEMPORAL_NAMESPACE",
    "tonic::transport::Error(Transport, hyper": "ended the connection; it may want TLS (TEMPORAL_TLS=true), or a client "
    "certificate that it trusts (TEMPORAL_TLS_CLIENT_CERT_PATH and TEMPORAL_TLS_CLIENT_KEY_PATH)",
}
"""What a server that is there may have against us, by the words of temporalio's error."""


async def connect(address: str | None = None, **options: Any) -> Client:
    """Connect to Temporal.

    Address, namespace, API key and TLS come from the environment (`TEMPORAL_ADDRESS` …) and `temporal.toml`, by
    Temporal's own rules. With an `address` of your own nothing is read from there: no profile's key is sent to it.
    `options` are those of `temporalio.client.Client.connect`, and win.

    Raises:
        RuntimeError: no server answers there, or it refuses us (temporalio's own error).
        DeclarationError: a setting cannot be: one of ours, or of Temporal's.
    """
    config: dict[str, Any] = {"target_host": address or DEFAULT_ADDRESS}
    if address is None:
        config |= _configured()
    config = {"data_converter": configured_converter(), **config, **options}
    config["interceptors"] = [*config.get("interceptors", ()), TraceHeader()]
    try:
        return await Client.connect(**config)
    except ValueError as error:
        raise DeclarationError(f"Temporal's settings cannot be used: {error}.") from None


def _configured() -> ClientConnectConfig:
    """What the environment and `temporal.toml` say."""
    try:
        config = ClientConfig.load_client_connect_config()
    except OSError as error:
        raise DeclarationError(f"Temporal's settings name {error.filename}: {error.strerror}.") from None
    except (RuntimeError, ValueError) as error:
        # Its further lines quote the file, which may hold a key.
        raise DeclarationError(f"Temporal's settings cannot be read: {str(error).splitlines()[0]}.") from None
    if "api_key" in config:
        # With the newline at a file's end, as Kubernetes' secrets often have, temporalio sends no key at all.
        config["api_key"] = config["api_key"].strip()
    return config


def configured_converter() -> DataConverter:
    """The pydantic one; with encryption where there are keys, and with external storage where one is named."""
    chosen, converter = settings(), data_converter
    if keys := chosen.encryption_keys.get_secret_value():
        from mulligan.client.encryption import parse_keys, with_encryption

        converter = with_encryption(converter, parse_keys(keys))
    if chosen.external_storage:
        from mulligan.client.external_storage import external_storage

        converter = dataclasses.replace(converter, external_storage=external_storage(chosen.external_storage))
    return converter


def configured_address() -> str:
    """The address that `connect()` tries."""
    return ClientConfig.load_client_connect_config().get("target_host") or DEFAULT_ADDRESS


def explain_connection_error(error: BaseException) -> str:
    """What to tell a person when `connect()` failed: where it was tried, and what to do about it."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    for words, fault in FAULTS.items():
        if words in reason:
            return f"the Temporal server at {configured_address()} {fault}."
    return (
        f"no Temporal server answers at {configured_address()} ({reason}). Start one with `uv run mulligan dev`, "
        "or set TEMPORAL_ADDRESS to yours."
    )


def explain_unreadable_data(error: BaseException) -> str:
    """What to tell a person when keys are missing: ours for a run, or a worker's for our question; or what is stored
    elsewhere. Empty: it is not that.
    """
    said = str(error)
    if "TMPRL1105" in said:
        return "a part of this run is in external storage; set MULLIGAN_EXTERNAL_STORAGE to that of its worker."
    if said.startswith("No driver found with name 'mulligan."):
        return "a part of this run is in another kind of external storage than MULLIGAN_EXTERNAL_STORAGE names."
    if type(error).__name__ == "StorageError":
        return said
    if said.startswith("S3StorageDriver "):
        return f"{said}: {error.__cause__}." if error.__cause__ else said
    if "Unknown payload encoding binary/encrypted" in said:
        return "this run is encrypted; set MULLIGAN_ENCRYPTION_KEYS to the keys of its worker."
    if isinstance(error, ValueError) and said.startswith("A payload "):
        return said
    # temporalio does not decrypt what a query's failure says.
    if isinstance(error, WorkflowQueryFailedError) and said == "Encoded failure":
        return "the worker could not answer; it may lack the first of our MULLIGAN_ENCRYPTION_KEYS."
    return ""


def run_and_exit(main: Callable[[], object]) -> NoReturn:
    """Run a program's main function and end the process with its exit code, without tearing the interpreter down.

    temporalio 1.35 on Python 3.11 now and then crashes (SIGSEGV) in an interpreter that ends soon after a call of its
    client: the exit code would be a lie. What must be closed is closed by `main` itself.
    """
    code: object = 0
    try:
        main()
    except SystemExit as end:
        code = end.code
    except KeyboardInterrupt:
        code = 130
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


class TraceHeader(Interceptor):
    """Hands the caller's trace to the workflows that it starts, in the header that Temporal's own tracing uses."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:  # noqa: A002 - Temporal's name
        """Wrap the client's calls."""
        return _Outbound(next)


class _Outbound(OutboundInterceptor):
    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:  # noqa: A002 - Temporal's name
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        if carrier and TRACE_HEADER not in input.headers:
            payload: Payload | None = JSONPlainPayloadConverter().to_payload(carrier)
            if payload is not None:
                input.headers = {**input.headers, TRACE_HEADER: payload}
        return await super().start_workflow(input)
