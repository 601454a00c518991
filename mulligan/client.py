"""A connection to Temporal, set up as Temporal's own environment configuration says."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from opentelemetry import propagate
from temporalio.api.common.v1 import Payload
from temporalio.client import Client, Interceptor, OutboundInterceptor, StartWorkflowInput, WorkflowHandle
from temporalio.contrib.pydantic import pydantic_data_converter as data_converter
from temporalio.converter import DataConverter, JSONPlainPayloadConverter
from temporalio.envconfig import ClientConfig

from mulligan.handoff import TRACE_HEADER
from mulligan.settings import settings

__all__ = ["DEFAULT_ADDRESS", "connect", "data_converter"]

DEFAULT_ADDRESS = "localhost:7233"


async def connect(address: str | None = None, **options: Any) -> Client:
    """Connect to Temporal.

    Address, namespace, API key and TLS come from the environment (`TEMPORAL_ADDRESS` …) and `temporal.toml`, by
    Temporal's own rules. With an `address` of your own nothing is read from there: no profile's key is sent to it.
    `options` are those of `temporalio.client.Client.connect`, and win.

    Raises:
        RuntimeError: no server answers there, or it refuses us (temporalio's own error).
        DeclarationError: a setting of ours cannot be.
    """
    config: dict[str, Any] = {"target_host": address or DEFAULT_ADDRESS}
    if address is None:
        config |= ClientConfig.load_client_connect_config()
    config = {"data_converter": _converter(), **config, **options}
    config["interceptors"] = [*config.get("interceptors", ()), TraceHeader()]
    return await Client.connect(**config)


def _converter() -> DataConverter:
    """The pydantic one; with encryption where there are keys."""
    if not (keys := settings().encryption_keys.get_secret_value()):
        return data_converter
    from mulligan.encryption import encrypted, keys_of

    return encrypted(data_converter, keys_of(keys))


def address_in_use() -> str:
    """The address that `connect()` tries."""
    return ClientConfig.load_client_connect_config().get("target_host") or DEFAULT_ADDRESS


def no_server(error: BaseException) -> str:
    """What to tell a person when `connect()` failed: where it was tried, and how to get a server."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return (
        f"no Temporal server answers at {address_in_use()} ({reason}). Start one with `uv run mulligan dev`, "
        "or set TEMPORAL_ADDRESS to yours."
    )


def leave(main: Callable[[], object]) -> NoReturn:
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
