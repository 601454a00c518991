"""Programs of the system tests that are built with Go: once a version, in the user's cache, by one process at a time."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from platformdirs import user_cache_path

from mulligan.devserver._cache import locked_scratch_folder
from mulligan.devserver._run_with_progress import run_with_progress
from tests.support.go_toolchain import find_go

JAEGER, KUSTOMIZE, COMPOSE, KEDA = "2.13", "v5.7.1", "v2.16.2", "v2.21.0"
ACTIONLINT, KUBECONFORM = "v1.7.12", "v0.8.0"
TEMPORAL = "v1.32.0"
"""The server of deploy/compose.yaml."""
PROMETHEUS = "v0.309.1"
"""The Go module of the Prometheus of deploy/compose.yaml, 3.9.1."""
_JAEGER_SOURCE = Path(__file__).parent / "jaeger"
OTEL, CONVENTIONS = "v1.44.0", "v1.41.0"
"""The version of the Go module, and that of the conventions in it: the one that mulligan/observe/semconv.py states."""
_SERVER = "go.temporal.io/server"
_OF_KEDA = ("config/crd/bases", "schema/generated")

Say = Callable[[str], None]


def _cached(name: str, version: str) -> Path:
    return user_cache_path("mulligan") / "tests" / f"{name}-{version}" / name


MADE = {
    "jaeger_program": _cached("jaeger", JAEGER),
    "kustomize_program": _cached("kustomize", KUSTOMIZE),
    "compose_program": _cached("cmd", COMPOSE),
    "keda_schemas": _cached("keda", KEDA),
    "conventions": _cached("conventions", OTEL),
    "actionlint_program": _cached("actionlint", ACTIONLINT),
    "kubeconform_program": _cached("kubeconform", KUBECONFORM),
    "promtool_program": _cached("promtool", PROMETHEUS),
    "temporal_server": _cached("server", TEMPORAL),
    "temporal_sql_tool": _cached("sql", TEMPORAL),
    "temporal_schema": _cached("schema", TEMPORAL),
}
"""The path of each program, built or not, by its name: that of its fixture (tests/system/conftest.py), if tests use it."""
OF_TESTS = (
    *(
        "conventions",
        "actionlint_program",
        "kubeconform_program",
        "kustomize_program",
        "compose_program",
        "keda_schemas",
        "promtool_program",
    ),
    "jaeger_program",
)
"""Those that the tests use, in the order in which they are built: the one that takes longest is last, as are its tests."""


async def make(name: str, say: Say) -> Path:
    """Build the program unless it exists; `say` gets lines about the progress."""
    made = MADE[name]
    if not made.exists():
        async with locked_scratch_folder(made, say) as scratch:
            # Another process may have built it while we waited.
            if not made.exists():
                os.replace(await _MAKERS[name](scratch, say), made)
    return made


async def make_all(say: Say) -> None:
    """All programs that the tests use."""
    for name in OF_TESTS:
        await make(name, say)


async def _jaeger(scratch: Path, say: Say) -> Path:
    """Jaeger v2, built from the `go.mod` and `go.sum` in `tests/support/jaeger` (about 4 minutes on 2 cores)."""
    shutil.copytree(_JAEGER_SOURCE, scratch, dirs_exist_ok=True)
    package = "github.com/jaegertracing/jaeger/cmd/jaeger"
    await _go(f"jaeger {JAEGER}", ("build", "-v", "-ldflags", "-s -w", "-o", "jaeger", package), scratch, say)
    return scratch / "jaeger"


async def _kustomize(scratch: Path, say: Say) -> Path:
    package = f"sigs.k8s.io/kustomize/kustomize/v5@{KUSTOMIZE}"
    await _go(f"kustomize {KUSTOMIZE}", ("install", "-v", package), scratch, say)
    return scratch / "kustomize"


async def _compose(scratch: Path, say: Say) -> Path:
    """The loader of the Compose Specification; Go names it by its folder."""
    package = f"github.com/compose-spec/compose-go/v2/cmd@{COMPOSE}"
    await _go(f"compose-go {COMPOSE}", ("install", "-v", package), scratch, say)
    return scratch / "cmd"


async def _actionlint(scratch: Path, say: Say) -> Path:
    """The checker of workflow files of GitHub Actions."""
    package = f"github.com/rhysd/actionlint/cmd/actionlint@{ACTIONLINT}"
    await _go(f"actionlint {ACTIONLINT}", ("install", "-v", package), scratch, say)
    return scratch / "actionlint"


async def _kubeconform(scratch: Path, say: Say) -> Path:
    """The validator of Kubernetes' manifests; it brings no schemas."""
    package = f"github.com/yannh/kubeconform/cmd/kubeconform@{KUBECONFORM}"
    await _go(f"kubeconform {KUBECONFORM}", ("install", "-v", package), scratch, say)
    return scratch / "kubeconform"


async def _promtool(scratch: Path, say: Say) -> Path:
    """Prometheus' checker of rules, without what finds targets in clouds: its SDKs are most of the build. From a copy of the
    source, as its `go.mod` has lines that `go install` refuses.
    """
    source = await _source(f"github.com/prometheus/prometheus@{PROMETHEUS}", scratch, say)
    shutil.copytree(source, scratch / "prometheus", copy_function=shutil.copyfile)
    _make_writable(scratch / "prometheus")
    (scratch / "prometheus/plugins/plugins.go").unlink()  # `minimum.go`, beside it, has those for files and HTTP
    command = ("build", "-C", "prometheus", "-v", "-ldflags", "-s -w", "-o", "../promtool", "./cmd/promtool")
    await _go(f"promtool {PROMETHEUS}", command, scratch, say)
    return scratch / "promtool"


async def _keda(scratch: Path, say: Say) -> Path:
    """The part of KEDA's source with the schemas of its resources and scalers."""
    source = await _source(f"github.com/kedacore/keda/v2@{KEDA}", scratch, say)
    for name in _OF_KEDA:
        shutil.copytree(source / name, scratch / "keda" / name, copy_function=shutil.copyfile)
    _make_writable(scratch / "keda")
    return scratch / "keda"


async def _temporal_server(scratch: Path, say: Say) -> Path:
    """Temporal's server, for other databases than that of the dev server; Go names it by its folder."""
    await _go(f"Temporal's server {TEMPORAL}", ("install", "-v", f"{_SERVER}/cmd/server@{TEMPORAL}"), scratch, say)
    return scratch / "server"


async def _temporal_sql_tool(scratch: Path, say: Say) -> Path:
    package = f"{_SERVER}/cmd/tools/sql@{TEMPORAL}"
    await _go(f"Temporal's tool for schemas {TEMPORAL}", ("install", "-v", package), scratch, say)
    return scratch / "sql"


async def _temporal_schema(scratch: Path, say: Say) -> Path:
    """The schemas for PostgreSQL, in the folders `temporal` and `visibility`."""
    source = await _source(f"{_SERVER}@{TEMPORAL}", scratch, say)
    shutil.copytree(source / "schema/postgresql/v12", scratch / "schema", copy_function=shutil.copyfile)
    _make_writable(scratch / "schema")
    return scratch / "schema"


async def _conventions(scratch: Path, say: Say) -> Path:
    """OpenTelemetry's semantic conventions with the type of each attribute, as its Go module has them."""
    source = await _source(f"go.opentelemetry.io/otel@{OTEL}", scratch, say)
    (scratch / "conventions").mkdir()
    shutil.copyfile(source / f"semconv/{CONVENTIONS}/attribute_group.go", scratch / "conventions/attributes.go")
    shutil.copyfile(source / f"semconv/{CONVENTIONS}/genaiconv/metric.go", scratch / "conventions/metrics.go")
    return scratch / "conventions"


async def _source(module: str, scratch: Path, say: Say) -> Path:
    """The folder of a Go module's source, in Go's read-only cache."""
    go, env = await find_go(scratch, say)
    say(f"downloading {module} for the tests, once")
    process = await asyncio.create_subprocess_exec(
        go, "mod", "download", "-json", module, cwd=scratch, env=env, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return Path(json.loads(out)["Dir"])


def _make_writable(copied: Path) -> None:
    """Go's module cache is read-only, and a copy of it could not be removed."""
    for folder in (copied, *copied.rglob("*/")):
        folder.chmod(0o755)


async def _go(what: str, command: tuple[str, ...], scratch: Path, say: Say) -> None:
    go, env = await find_go(scratch, say)
    await run_with_progress(
        ("nice", "-n", "19", go, *command),  # the lowest priority: tests run meanwhile
        lambda seconds, lines: f"building {what} for the tests, once: {seconds:.0f} s, {len(lines)} packages",
        say,
        cwd=scratch,
        env={**env, "GOBIN": str(scratch)},
    )


_MAKERS: dict[str, Callable[[Path, Say], Awaitable[Path]]] = {
    "jaeger_program": _jaeger,
    "kustomize_program": _kustomize,
    "compose_program": _compose,
    "keda_schemas": _keda,
    "conventions": _conventions,
    "actionlint_program": _actionlint,
    "kubeconform_program": _kubeconform,
    "promtool_program": _promtool,
    "temporal_server": _temporal_server,
    "temporal_sql_tool": _temporal_sql_tool,
    "temporal_schema": _temporal_schema,
}


def say_on_stderr(line: str) -> None:
    """For a process whose output is not captured."""
    print(line, file=sys.stderr, flush=True)
