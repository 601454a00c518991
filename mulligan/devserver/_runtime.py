"""The SDK's runtime for this room's own connections."""

from __future__ import annotations

from functools import cache

from temporalio.runtime import Runtime, TelemetryConfig


@cache
def quiet_runtime() -> Runtime:
    """One that logs nothing: that a server does not answer is a finding here, not a warning on the user's terminal.

    Nor is the SDK's default runtime made by this: the program may still want to set its own.
    """
    return Runtime(telemetry=TelemetryConfig(logging=None))
