"""The environment variables of isolated calls: the worker's, without the secrets of Mulligan, the providers and the door.

Others, such as the token that a user's tool works with, are passed on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from pydantic import SecretStr

from mulligan.activities.registry import Registry
from mulligan.client.settings import Settings
from mulligan.endpoint import Endpoint
from mulligan.provider_plugin import BUILT_IN, known_prefixes

_OWNERS = ("MULLIGAN", "TEMPORAL", "OTEL", "OPENAI", "ANTHROPIC", "GOOGLE", "GEMINI", "VERTEX", "AZURE", "AWS")
"""The first words of the variables of Mulligan, Temporal, OpenTelemetry, and the providers of models and storage."""
_SECRET = re.compile(
    r"KEY|TOKEN|SECRET|PASSWORD|PASSPHRASE|CREDENTIAL|HEADER|AUTH$|^TEMPORAL_GRPC_META_", re.IGNORECASE
)
"""Matches names of secrets."""
_SETTINGS = {f"MULLIGAN_{name}".upper() for name, each in Settings.model_fields.items() if each.annotation is SecretStr}
_ORDINARY = {"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER"}
"""A declaration that refers to one of these does not make it a secret."""


def secret_names(registry: Registry, endpoints: Iterable[Endpoint]) -> set[str]:
    """The variables of this process that are secrets of a worker's endpoints, MCP servers and provider plugins."""
    names = {name for endpoint in endpoints for name in endpoint.variables()}
    names.update(name for server in registry.parts.servers.all() for name in server.variables())
    plugins = [re.sub(r"\W", "_", prefix).upper() for prefix in known_prefixes() if prefix not in BUILT_IN]
    return (names | {name for name in os.environ if _is_secret_of(plugins, name)}) - _ORDINARY


def isolated_environment(
    environ: Mapping[str, str], secrets: Collection[str], isolated_env: Sequence[str]
) -> dict[str, str]:
    """The variables of a process for isolated calls.

    Args:
        environ: The worker's.
        secrets: More names of secrets.
        isolated_env: The tool's: a name stays although it is a secret; one with a "-" before it is removed as well.
    """
    return {
        name: value
        for name, value in environ.items()
        if f"-{name}" not in isolated_env
        and (name in isolated_env or not (name in secrets or name in _SETTINGS or _is_secret_of(_OWNERS, name)))
    }


def _is_secret_of(owners: Sequence[str], name: str) -> bool:
    return name.upper().startswith(tuple(f"{owner}_" for owner in owners)) and _SECRET.search(name) is not None
