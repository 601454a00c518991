"""TLS, client certificates and API keys over real TLS, by Temporal's settings: valid ones, and the error of each fault."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from mulligan.devserver import DevServer
from tests.support.command_server import run_command
from tests.support.tls_proxy import Authority, Identity, TlsProxy, tls_proxy

ROOT = Path(__file__).parent.parent.parent
API_KEY = "key-0815-sesame"
Environ = dict[str, str]


@dataclass
class Servers:
    """One Temporal server behind proxies with different TLS requirements."""

    plain: str
    tls: TlsProxy
    mutual: TlsProxy
    renamed: TlsProxy
    expired: TlsProxy
    keyed: TlsProxy
    certificates: Environ
    """The values of placeholders in the settings below, such as the path for `CA`."""


@pytest.fixture(scope="module")
async def servers(temporal: DevServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Servers]:
    folder = tmp_path_factory.mktemp("certificates")
    ours, strange = Authority(folder, "ours"), Authority(folder, "strange")
    local = ours.issue("localhost", "127.0.0.1")
    client, stranger = ours.issue("client"), strange.issue("client")
    async with AsyncExitStack() as stack:

        async def behind(identity: Identity, clients: Authority | None = None, api_key: str = "") -> TlsProxy:
            proxy = tls_proxy(temporal.address, identity, clients=clients, api_key=api_key)
            return await stack.enter_async_context(proxy)

        mutual = await behind(local, ours)
        profile, broken = folder / "temporal.toml", folder / "broken.toml"
        profile.write_text(
            f'[profile.prod]\naddress = "{mutual.address}"\n[profile.prod.tls]\n'
            f'server_ca_cert_path = "{ours.certificate}"\n'
            f'client_cert_path = "{client.certificate}"\nclient_key_path = "{client.key}"\n'
        )
        broken.write_text(f'[profile.default]\napi_key = "{API_KEY}\n')
        yield Servers(
            temporal.address,
            await behind(local),
            mutual,
            await behind(ours.issue("temporal.example")),
            await behind(ours.issue("localhost", "127.0.0.1", days=-1)),
            await behind(local, api_key=API_KEY),
            {
                "CA": str(ours.certificate), "STRANGE_CA": str(strange.certificate),
                "CERT": str(client.certificate), "KEY": str(client.key),
                "STRANGE_CERT": str(stranger.certificate), "STRANGE_KEY": str(stranger.key),
                "PROFILE": str(profile), "BROKEN": str(broken),
            },
        )  # fmt: skip


def environ(servers: Servers, server: str, settings: Environ) -> Environ:
    """The environment of a command; placeholders in `settings` are replaced by paths."""
    at = getattr(servers, server) if server else None
    address = {"TEMPORAL_ADDRESS": at if isinstance(at, str) else at.address} if at else {}
    named = {f"TEMPORAL_{name}": servers.certificates.get(value, value) for name, value in settings.items()}
    return {**os.environ, **address, **named}


async def command(*words: str, env: Environ) -> tuple[int, str, str]:
    code, out, err = await run_command(*words, env=env)
    return code, out.decode(), err.decode()


CA = {"TLS_SERVER_CA_CERT_PATH": "CA"}
CERT = {"TLS_CLIENT_CERT_PATH": "CERT", "TLS_CLIENT_KEY_PATH": "KEY"}

WORKS = [
    ("the server's authority", "tls", CA),
    ("a client certificate", "mutual", CA | CERT),
    ("a profile in temporal.toml", "", {"CONFIG_FILE": "PROFILE", "PROFILE": "prod"}),
    ("another name", "renamed", CA | {"TLS_SERVER_NAME": "temporal.example"}),
    ("an API key", "keyed", CA | {"API_KEY": API_KEY}),
    ("an API key from a file", "keyed", CA | {"API_KEY": f"{API_KEY}\n"}),
]


@pytest.mark.parametrize(("name", "server", "settings"), WORKS, ids=[name for name, *_ in WORKS])
async def test_a_command_connects_with_each_valid_tls_setting(
    servers: Servers, name: str, server: str, settings: Environ
) -> None:
    """`mulligan list` succeeds."""
    code, out, err = await command("list", "--json", env=environ(servers, server, settings))
    assert (code, err) == (0, "")
    assert out.startswith("[")


STRANGER = {"TLS_CLIENT_CERT_PATH": "STRANGE_CERT", "TLS_CLIENT_KEY_PATH": "STRANGE_KEY"}
NOT_TRUSTED = "has a certificate of an authority that is not trusted here; set TEMPORAL_TLS_SERVER_CA_CERT_PATH"
ENDED = "ended the connection; it may want TLS (TEMPORAL_TLS=true), or a client certificate that it trusts"
REFUSES = "refuses us; see TEMPORAL_API_KEY and TEMPORAL_NAMESPACE"

FAULTS = [
    ("another authority", "tls", {"TLS_SERVER_CA_CERT_PATH": "STRANGE_CA"}, NOT_TRUSTED),
    ("the system's authorities", "tls", {"TLS": "true"}, NOT_TRUSTED),
    ("another name", "renamed", CA, "has a certificate for another name; set TEMPORAL_TLS_SERVER_NAME"),
    ("an old certificate", "expired", CA, "has a certificate that has expired"),
    ("no client certificate", "mutual", CA, ENDED),
    ("a stranger's certificate", "mutual", CA | STRANGER, ENDED),
    ("no TLS", "tls", {}, ENDED),
    ("TLS where there is none", "plain", {"TLS": "true"}, "does not speak TLS, which a TEMPORAL_TLS setting or an API key"),
    ("a key switches TLS on", "plain", {"API_KEY": API_KEY}, "does not speak TLS, which a TEMPORAL_TLS setting or an API"),
    ("another key", "keyed", CA | {"API_KEY": f"not-{API_KEY}"}, REFUSES),
    ("no key", "keyed", CA, REFUSES),
    ("no private key", "mutual", CA | {"TLS_CLIENT_CERT_PATH": "CERT"}, "Must have both client cert and private key"),
    ("a key of another", "mutual", CA | CERT | {"TLS_CLIENT_KEY_PATH": "STRANGE_KEY"}, "is not the key of TEMPORAL_TLS"),
    ("no such file", "tls", {"TLS_SERVER_CA_CERT_PATH": "nowhere.pem"}, "name nowhere.pem: No such file or directory."),
    ("no such profile", "tls", {"PROFILE": "nope"}, "Temporal's settings cannot be read: Profile 'nope' not found."),
    ("a broken profile", "tls", {"CONFIG_FILE": "BROKEN"}, "Temporal's settings cannot be read: Configuration loading"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "server", "settings", "says"), FAULTS, ids=[name for name, *_ in FAULTS])
async def test_each_tls_fault_ends_commands_and_workers_with_one_sentence(
    servers: Servers, name: str, server: str, settings: Environ, says: str
) -> None:
    """With exit code 2. The sentence quotes no key and does not recommend a dev server."""
    env = environ(servers, server, settings)
    ends = await asyncio.gather(command("list", env=env), command("worker", "--task-queue", "tls", env=env))
    for code, out, err in ends:
        assert says in err
        assert (code, out, len(err.splitlines())) == (2, "", 1)
        assert "mulligan dev" not in err
        assert "sesame" not in err


async def test_an_api_key_is_sent_with_each_call_and_printed_nowhere(servers: Servers) -> None:
    """Neither in the output of commands and workers nor in the history."""
    env = environ(servers, "keyed", CA | {"API_KEY": API_KEY}) | {"MULLIGAN_TASK_QUEUE": "keyed"}
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "worker.py", "--load", "tests.acceptance.support_agent", env=env, cwd=ROOT,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        code, out, err = await command("start", "support", "Hi", "--id", "keyed", "--wait", env=env)
        assert (code, out) == (0, "Ada has order 7.\n"), err
        shown = await command("show", "keyed", "--json", env=env)
        worker.terminate()
        said, _ = await worker.communicate()
    finally:
        if worker.returncode is None:
            worker.kill()
            await worker.wait()
    assert worker.returncode == 0
    assert API_KEY not in f"{out}{err}{shown}{said.decode()}"
    methods = {method.rpartition("/")[2] for method, _ in servers.keyed.calls}
    assert {"StartWorkflowExecution", "PollWorkflowTaskQueue", "RespondActivityTaskCompleted"} <= methods
