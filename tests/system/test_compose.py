"""deploy/compose.yaml: valid by the loader of the Compose Specification, and correct in what no schema checks."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from mulligan import Agent
from mulligan.devserver import find_temporal
from mulligan.durations import seconds
from tests.support.go_programs import JAEGER

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
ONE_SHOT = {"temporal-schema", "temporal-namespace"}
CANNOT_BE_ASKED = {"collector"}  # its image contains one program, so a health check has none to run
PUBLISHED = {"7233": "temporal", "8233": "temporal-ui", "16686": "jaeger", "9090": "prometheus", "3000": "grafana"}


async def loaded(program: Path, file: Path) -> tuple[int, str, str]:
    """The project as Compose reads it, with the given settings only."""
    process = await asyncio.create_subprocess_exec(
        program, "--format", "json", file.name, cwd=file.parent, env={"PATH": os.environ["PATH"]},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.fixture(scope="module")
async def project(compose_program: Path) -> dict[str, Any]:
    code, out, err = await loaded(compose_program, DEPLOY / "compose.yaml")
    assert code == 0, err
    assert err == ""  # missing variables would be reported here
    model: dict[str, Any] = json.loads(out)
    return model


@pytest.fixture(scope="module")
def services(project: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = project["services"]
    return found


@pytest.fixture(scope="module")
def worker(services: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = services["worker"]
    return found


async def test_the_loader_refuses_an_invalid_compose_file(compose_program: Path, tmp_path: Path) -> None:
    """Otherwise the other tests would prove nothing."""
    text = (DEPLOY / "compose.yaml").read_text()
    for right, wrong in (("init: true", "inti: true"), ("condition: service_healthy", "condition: healthy")):
        assert right in text
        (tmp_path / "compose.yaml").write_text(text.replace(right, wrong))
        code, _, err = await loaded(compose_program, tmp_path / "compose.yaml")
        assert code == 1
        assert wrong.split(":")[0] in err


def test_networks_services_and_volumes_that_a_service_names_are_declared(
    project: dict[str, Any], services: dict[str, Any]
) -> None:
    """The loader checks only the schema."""
    for name, service in services.items():
        assert set(service["networks"]) <= set(project["networks"]), name
        assert set(service.get("depends_on", {})) <= set(services), name
        named = {mount["source"] for mount in service.get("volumes", []) if mount["type"] == "volume"}
        assert named <= set(project["volumes"]), name


def test_services_start_when_their_dependencies_are_ready(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert ("healthcheck" in service) == (name not in ONE_SHOT | CANNOT_BE_ASKED), name
        for needed, how in service.get("depends_on", {}).items():
            is_ready = "service_completed_successfully" if needed in ONE_SHOT else "service_healthy"
            assert how["condition"] == ("service_started" if needed in CANNOT_BE_ASKED else is_ready), (name, needed)
    assert set(services["worker"]["depends_on"]) == {"temporal-namespace", "collector"}


def test_one_shot_services_restart_on_failure_only_and_others_always(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["restart"].startswith("on-failure" if name in ONE_SHOT else "unless-stopped"), name


async def test_images_have_the_versions_that_the_tests_run(services: dict[str, Any]) -> None:
    images = dict(service["image"].partition("@")[0].rsplit(":", 1) for service in services.values())
    assert all(re.match(r"v?\d+\.\d+", tag) for tag in images.values()), images
    program = await find_temporal(print)
    printed = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout  # noqa: ASYNC221
    dev_server = re.search(r"Server (\S+), UI (\S+)\)", printed)
    assert dev_server, printed
    collectors = (ROOT / "tests/support/jaeger/go.mod").read_text()
    assert images["temporalio/server"] == dev_server[1]
    assert images["temporalio/admin-tools"].startswith(images["temporalio/server"])
    assert images["temporalio/ui"] == dev_server[2]
    assert images["jaegertracing/jaeger"].startswith(JAEGER)
    contrib = "github.com/open-telemetry/opentelemetry-collector-contrib/processor/tailsamplingprocessor"
    assert images["otel/opentelemetry-collector-contrib"] == _version(collectors, contrib)
    # Between releases the tree is the next release's: `.dev0` until its tag.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert images["mulligan-worker"] == project["version"].removesuffix(".dev0")


def _version(go_mod: str, module: str) -> str:
    found = re.search(rf"^\s*{re.escape(module)} v(\S+)", go_mod, re.MULTILINE)
    assert found, module
    return found[1]


def test_ports_are_published_on_the_loopback_only(services: dict[str, Any], project: dict[str, Any]) -> None:
    ports = [(port, name) for name, service in services.items() for port in service.get("ports", [])]
    assert {port["host_ip"] for port, _ in ports} == {"127.0.0.1"}
    assert {port["published"]: name for port, name in ports} == PUBLISHED
    assert project["networks"]["database"]["internal"] is True
    assert set(services["postgresql"]["networks"]) == {"database"}
    assert {name for name in services if "database" in services[name]["networks"]} == {
        "postgresql", "temporal", "temporal-schema",
    }  # fmt: skip


def test_services_have_no_more_rights_than_they_need(services: dict[str, Any]) -> None:
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not {"privileged", "network_mode", "pid", "devices"} & set(service), name
    assert {name for name in services if "cap_add" in services[name]} == {"postgresql", "temporal-ui"}


def test_services_are_limited_in_memory_and_processes(services: dict[str, Any]) -> None:
    """Also as one limit of all together: it fits a machine of 12 GB."""
    units = {"m": 1, "g": 1024}
    limits = [int(service["mem_limit"][:-1]) * units[service["mem_limit"][-1]] for service in services.values()]
    assert min(limits) >= 256
    assert sum(limits) <= 12 * 1024
    pids = {name: service["pids_limit"] for name, service in services.items()}
    assert pids.pop("worker") == 2048
    assert set(pids.values()) == {512}


async def test_make_pin_images_writes_the_digest_of_every_image_or_changes_nothing(
    compose_program: Path, tmp_path: Path
) -> None:
    """With a program in the place of Docker. The result is valid, and pinning again replaces the digests."""
    names = ("compose.yaml", "Dockerfile", "example/Dockerfile")
    (tmp_path / "deploy/example").mkdir(parents=True)
    for name in names:
        shutil.copy(DEPLOY / name, tmp_path / "deploy" / name)

    async def pin(says: str) -> int:
        docker = tmp_path / "bin/docker"
        docker.parent.mkdir(exist_ok=True)
        docker.write_text(f"#!/bin/sh\n{says}\n")
        docker.chmod(0o755)
        process = await asyncio.create_subprocess_exec(
            sys.executable, ROOT / ".ci/pin_images.py", tmp_path / "deploy", stderr=asyncio.subprocess.PIPE,
            env={"PATH": f"{docker.parent}:{os.environ['PATH']}"},
        )  # fmt: skip
        await process.communicate()
        assert process.returncode is not None
        return process.returncode

    before = {name: (tmp_path / "deploy" / name).read_text() for name in names}
    unknown = 'test "$6" = grafana/grafana:12.2.1 && exit 1; echo sha256:' + "a" * 64
    assert await pin(unknown) == 1
    assert {name: (tmp_path / "deploy" / name).read_text() for name in names} == before
    for digit in "ab":
        assert await pin(f"echo sha256:{digit * 64}") == 0
        code, out, err = await loaded(compose_program, tmp_path / "deploy/compose.yaml")
        assert (code, err) == (0, "")
        images = {service["image"] for name, service in json.loads(out)["services"].items() if name != "worker"}
        assert {image.partition("@")[2] for image in images} == {f"sha256:{digit * 64}"}
        froms = re.findall(r"^FROM (?!\$|build)(\S+)", (tmp_path / "deploy/Dockerfile").read_text(), re.MULTILINE)
        assert all(image.endswith(f"@sha256:{digit * 64}") for image in froms)


async def test_make_pin_images_asks_crane_where_there_is_no_docker(tmp_path: Path) -> None:
    for name in ("compose.yaml", "Dockerfile", "example/Dockerfile"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(DEPLOY / name, tmp_path / name)
    crane = tmp_path / "bin/crane"
    crane.parent.mkdir()
    for says in (None, f'test "$1" = digest && echo sha256:{"c" * 64}'):
        if says is not None:
            crane.write_text(f"#!/bin/sh\n{says}\n")
            crane.chmod(0o755)
        process = await asyncio.create_subprocess_exec(
            sys.executable, ROOT / ".ci/pin_images.py", tmp_path, stderr=asyncio.subprocess.PIPE, env={"PATH": str(crane.parent)}
        )  # fmt: skip
        _, err = await process.communicate()
        assert (process.returncode == 0) == (says is not None)
        assert (b"Install Docker or crane" in err) == (says is None)
    assert f"image: grafana/grafana:12.2.1@sha256:{'c' * 64}\n" in (tmp_path / "compose.yaml").read_text()


BY_VERSION = {
    *("ghcr.io/astral-sh/uv", "temporalio/server", "temporalio/admin-tools", "temporalio/ui"),
    *("jaegertracing/jaeger", "otel/opentelemetry-collector-contrib"),
}


def test_each_image_has_a_digest_or_is_listed_as_one_without() -> None:
    """deploy/README.md says which are pinned how. Images that are built here have neither."""
    rows = re.findall(r"^\| (.*?) \| (version .*?) \|$", (DEPLOY / "README.md").read_text(), re.MULTILINE)
    listed = {pinned.partition(",")[0]: set(re.findall(r"`([\w./-]+)`", names)) for names, pinned in rows}
    found: dict[str, set[str]] = {"version and digest": set(), "version only": set()}
    for name in ("compose.yaml", "Dockerfile", "example/Dockerfile"):
        text = (DEPLOY / name).read_text()
        for image, tag, digest in re.findall(
            r"(?:^\s*image: |^FROM (?:--\S+ )?|[=,]from=)([\w./-]+):([\w.-]+)(@sha256:[0-9a-f]{64})?(?=[\s,])",
            text,
            re.MULTILINE,
        ):
            assert tag != "latest"
            found["version and digest" if digest else "version only"].add(image)
    assert found["version only"] == BY_VERSION == listed["version only"]
    assert found["version and digest"] == listed["version and digest"]


def test_the_worker_is_confined_and_drains(worker: dict[str, Any]) -> None:
    assert worker["read_only"] is True
    assert worker["init"] is True
    assert "ports" not in worker
    assert {mount["target"]: mount.get("read_only", False) for mount in worker["volumes"]} == {
        "/agents": True, "/workspace": False, "/workspace/orders.md": True,
    }  # fmt: skip
    grace = float(worker["environment"]["MULLIGAN_GRACE_SECONDS"])
    longest = seconds(Agent(name="any", model="scripted:any").model_timeout)
    assert longest < grace < _seconds(worker["stop_grace_period"])
    assert worker["environment"]["MULLIGAN_HEALTH_ADDRESS"] in worker["healthcheck"]["test"][-1]


def _seconds(duration: str) -> float:
    units = {"h": 3600, "m": 60, "s": 1}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+)([hms])", duration))


def test_keys_are_passed_on_and_written_nowhere(worker: dict[str, Any]) -> None:
    """Variables without a value in the file: the container gets them from the shell, if they are set there."""
    for name in ("OPENAI_API_KEY", "MULLIGAN_ENCRYPTION_KEYS"):
        assert name in worker["environment"]
        assert worker["environment"][name] is None


def test_mounted_files_and_build_contexts_exist(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for mount in service.get("volumes", []):
            if mount["type"] == "bind":
                assert Path(mount["source"]).exists(), (name, mount)
    build = services["worker"]["build"]
    assert (Path(build["context"]) / build["dockerfile"]).is_file()
    for script in ("schema.sh", "namespace.sh"):
        assert any(script in word for name in ONE_SHOT for word in services[name]["entrypoint"])
        assert (DEPLOY / "temporal" / script).is_file()
    assert (DEPLOY / "temporal" / Path(services["temporal"]["environment"]["DYNAMIC_CONFIG_FILE_PATH"]).name).is_file()


def _hosts() -> Iterator[tuple[str, str]]:
    """Every address in the files beside compose.yaml: (host, port)."""
    prometheus = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    for scraped in prometheus["scrape_configs"]:
        for target in scraped["static_configs"][0]["targets"]:
            yield tuple(target.split(":"))
    sources = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text())
    for source in sources["datasources"]:
        yield tuple(source["url"].removeprefix("http://").split(":"))


def test_prometheus_and_grafana_use_addresses_that_exist(services: dict[str, Any]) -> None:
    places = set(_hosts())
    assert {host for host, _ in places} <= set(services)
    config = (DEPLOY / "collector.yaml").read_text()
    assert {port for host, port in places if host == "collector"} == {
        re.findall(rf"{name}:-(\d+)", config)[0] for name in ("METRICS_PORT", "OWN_METRICS_PORT")
    }
    listens = services["temporal"]["environment"]["PROMETHEUS_ENDPOINT"].split(":")[1]
    assert [port for host, port in places if host == "temporal"] == [listens]
    assert services["worker"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4317"
    mounted = {mount["target"] for mount in services["prometheus"]["volumes"]}
    assert set(yaml.safe_load((DEPLOY / "prometheus.yml").read_text())["rule_files"]) <= mounted


def test_the_dashboards_are_mounted_where_grafana_reads_them(services: dict[str, Any]) -> None:
    mounts = {mount["target"]: Path(mount["source"]) for mount in services["grafana"]["volumes"]}
    provider = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/mulligan.yaml").read_text())["providers"][0]
    home = Path(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == provider["options"]["path"]
    assert (mounts[str(home.parent)] / home.name).is_file()
    assert mounts["/etc/grafana/provisioning"] == DEPLOY / "grafana/provisioning"


def test_the_collector_gets_the_settings_that_its_file_reads(services: dict[str, Any]) -> None:
    read = set(re.findall(r"\$\{env:(\w+)", (DEPLOY / "collector.yaml").read_text()))
    assert set(services["collector"]["environment"]) <= read
    limit = re.search(r"MEMORY_LIMIT_MIB:-(\d+)", (DEPLOY / "collector.yaml").read_text())
    assert limit
    assert int(limit[1]) < int(services["collector"]["mem_limit"].removesuffix("m"))
