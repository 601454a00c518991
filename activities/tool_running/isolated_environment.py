"""The environment variables of isolated calls: the worker's, without those that are secrets."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from pydantic import SecretStr

from mulligan.activities.registry import Registry
from mulligan.client.settings import Settings
from mulligan.endpoint import Endpoint

__all__ = ["isolated_environment", "secret_names"]

_SECRET = re.compile(
    r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|(?<![A-Z])PASS|CREDENTIAL|COOKIE|HEADER)S?(?![A-Z])"
    r"|AUTH$|^TEMPORAL_GRPC_META_",
    re.IGNORECASE,
)
"""Names of secrets. Not of `TOKENIZERS_PARALLELISM`, `KEYBOARD` or `GIT_AUTHOR_NAME`."""
_SETTINGS = {f"MULLIGAN_{name}".upper() for name, each in Settings.model_fields.items() if each.annotation is SecretStr}
_ORDINARY = {"HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER"}
"""A declaration that refers to one of these does not make it a secret."""


def secret_names(registry: Registry, endpoints: Iterable[Endpoint]) -> set[str]:
    """The environment variables to which a worker's endpoints and MCP servers refer, as secrets are not in the code."""
    names = {name for endpoint in endpoints for name in endpoint.variables()}
    names.update(name for agent in registry.agents.values() for server in agent.mcp for name in server.variables())
    return names - _ORDINARY


def isolated_environment(
    environ: Mapping[str, str], secrets: Collection[str], isolated_env: Sequence[str]
) -> dict[str, str]:
    """The variables of a process for isolated calls.

    Args:
        environ: The worker's.
        secrets: Names that are secrets though they do not look like it.
        isolated_env: The tool's: a name stays although it is a secret; one with a "-" before it is removed as well.
    """
    return {
        name: value
        for name, value in environ.items()
        if f"-{name}" not in isolated_env
        and (name in isolated_env or not (name in secrets or name in _SETTINGS or _SECRET.search(name)))
    }
