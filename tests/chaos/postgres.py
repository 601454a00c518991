"""A Temporal server whose data is in PostgreSQL, as in deploy/compose.yaml, which can be killed and started again.

PostgreSQL's programs (`initdb`, `postgres`) are found on PATH or where Debian's package puts them; Temporal's server and its
tool for the schema are built with Go, once (tests/support/go_programs.py).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import socket
import tempfile
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest, RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from mulligan.devserver import DevServer
from mulligan.devserver.dev_server import DYNAMIC_CONFIG, LOOPBACK, NAMESPACE
from mulligan.wire.search_attributes import SEARCH_ATTRIBUTES
from tests.support.go_programs import make, say_on_stderr
from tests.support.ports import free_ports

SECONDS_TO_ANSWER = 60.0
DATABASES = ("temporal", "temporal_visibility")
SERVICES = ("frontend", "history", "matching", "worker")
DEBIAN = "/usr/lib/postgresql/*/bin"


class PostgresServer:
    """PostgreSQL with Temporal's server. `settings`: dynamic configuration, each `name=value`."""

    def __init__(self, settings: tuple[str, ...] = ()) -> None:
        self._settings = settings
        self._folder = Path(tempfile.mkdtemp(prefix="chaos-postgres-"))  # PostgreSQL's user must reach it
        self._ports = [*free_ports(len(SERVICES) + 1), *_small_ports(len(SERVICES))]
        self._database: asyncio.subprocess.Process | None = None
        self._temporal: asyncio.subprocess.Process | None = None

    @property
    def _address(self) -> str:
        return f"{LOOPBACK}:{self._ports[1]}"

    async def start(self) -> DevServer:
        """Create the databases, and start both."""
        await self._start_database()
        tool = await make("temporal_sql_tool", say_on_stderr)
        schema = await make("temporal_schema", say_on_stderr)
        for database in DATABASES:
            versions = schema / database.removeprefix("temporal_") / "versioned"
            for command in (
                ("create-database",),
                ("setup-schema", "--version", "0.0"),
                ("update-schema", "--schema-dir", str(versions)),
            ):
                await _run(
                    tool, "--plugin", "postgres12", "--endpoint", LOOPBACK, "--port", str(self._ports[0]),
                    "--user", "temporal", "--password", "none", "--database", database, *command,
                )  # fmt: skip
        await self._start_temporal()
        client = await Client.connect(self._address)
        retention = Duration()
        retention.FromTimedelta(timedelta(days=1))
        register = RegisterNamespaceRequest(namespace=NAMESPACE, workflow_execution_retention_period=retention)
        await client.workflow_service.register_namespace(register)
        await _until_it_answers(self._address, NAMESPACE)
        keyword = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
        attributes = AddSearchAttributesRequest(
            namespace=NAMESPACE, search_attributes={each.name: keyword for each in SEARCH_ATTRIBUTES}
        )
        await client.operator_service.add_search_attributes(attributes)
        return DevServer(self._address, NAMESPACE, ui_url=None)

    def pids(self) -> list[int]:
        """The process of Temporal's server."""
        running = self._temporal is not None and self._temporal.returncode is None
        return [self._temporal.pid] if running and self._temporal else []

    async def restart(self) -> None:
        """Start Temporal's server again after it was killed."""
        if self._temporal is not None:
            await self._temporal.wait()
        await self._start_temporal()

    async def stop(self) -> None:
        """End both, and remove the data."""
        for process, how in ((self._temporal, signal.SIGKILL), (self._database, signal.SIGINT)):
            if process is not None and process.returncode is None:
                with suppress(ProcessLookupError):
                    process.send_signal(how)
                await process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def _start_database(self) -> None:
        data = self._folder / "data"
        data.mkdir()
        user = None
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            user = "postgres"
            self._folder.chmod(0o755)
            shutil.chown(data, user)
        await _run(_program("initdb"), "-D", str(data), "-A", "trust", "-U", "temporal", user=user)
        self._database = await asyncio.create_subprocess_exec(
            _program("postgres"), "-D", str(data), "-h", LOOPBACK, "-p", str(self._ports[0]), "-k", "",
            user=user, cwd=data, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        async with asyncio.timeout(SECONDS_TO_ANSWER):
            while True:
                with suppress(OSError):
                    _, writer = await asyncio.open_connection(LOOPBACK, self._ports[0])
                    writer.close()
                    return
                await asyncio.sleep(0.05)

    async def _start_temporal(self) -> None:
        program = await make("temporal_server", say_on_stderr)
        (self._folder / "config").mkdir(exist_ok=True)
        (self._folder / "config/development.yaml").write_text(json.dumps(self._config()))  # JSON is YAML
        (self._folder / "dynamic.yaml").write_text(json.dumps(_dynamic((*DYNAMIC_CONFIG, *self._settings))))
        self._temporal = await asyncio.create_subprocess_exec(
            program, "--root", str(self._folder), "--allow-no-auth", "start",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        await _until_it_answers(self._address)

    def _config(self) -> dict[str, Any]:
        stores = {
            database: {
                "sql": {
                    "pluginName": "postgres12",
                    "databaseName": database,
                    "connectAddr": f"{LOOPBACK}:{self._ports[0]}",
                    "connectProtocol": "tcp",
                    "user": "temporal",
                    "password": "none",
                    "maxConns": 20,
                    "maxIdleConns": 20,
                }
            }
            for database in DATABASES
        }
        ports = self._ports[1:]
        services = {
            name: {"rpc": {"grpcPort": ports[n], "membershipPort": ports[n + len(SERVICES)], "bindOnIP": LOOPBACK}}
            for n, name in enumerate(SERVICES)
        }
        return {
            "log": {"stdout": True, "level": "error"},
            "persistence": {
                "defaultStore": DATABASES[0],
                "visibilityStore": DATABASES[1],
                "numHistoryShards": 4,
                "datastores": stores,
            },
            "global": {"membership": {"maxJoinDuration": "30s", "broadcastAddress": LOOPBACK}},
            "services": services,
            "clusterMetadata": {
                "enableGlobalNamespace": False,
                "failoverVersionIncrement": 10,
                "masterClusterName": "active",
                "currentClusterName": "active",
                "clusterInformation": {
                    "active": {
                        "enabled": True,
                        "initialFailoverVersion": 1,
                        "rpcName": "frontend",
                        "rpcAddress": self._address,
                    }
                },
            },
            "dcRedirectionPolicy": {"policy": "noop"},
            "dynamicConfigClient": {"filepath": str(self._folder / "dynamic.yaml"), "pollInterval": "10s"},
        }


def _small_ports(count: int) -> list[int]:
    """Free ports for the membership of services: its table has a column of 16 bits with a sign for them."""
    found: list[int] = []
    while len(found) < count:
        port = random.randint(10_000, 32_000)
        with suppress(OSError), socket.create_server((LOOPBACK, port)):
            found += [port] if port not in found else []
    return found


def _dynamic(settings: tuple[str, ...]) -> dict[str, list[dict[str, Any]]]:
    pairs = (setting.split("=", 1) for setting in settings)
    return {name: [{"value": json.loads(value)}] for name, value in pairs}


def _program(name: str) -> str:
    found = shutil.which(name) or next((str(path) for path in sorted(Path("/").glob(f"{DEBIAN[1:]}/{name}"))), None)
    if found is None:
        raise SystemExit(f"PostgreSQL's {name} is missing: install it (Debian: `apt-get install postgresql`)")
    return found


async def _run(*command: str | Path, user: str | None = None) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, user=user, cwd="/", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"{command} ended with {process.returncode}: {out.decode()[-1000:]}")


async def _until_it_answers(address: str, namespace: str = "temporal-system") -> None:
    async with asyncio.timeout(SECONDS_TO_ANSWER):
        while True:
            with suppress(RPCError, RuntimeError):
                client = await Client.connect(address)
                await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=namespace))
                return
            await asyncio.sleep(0.1)
