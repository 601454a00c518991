"""What a release consists of: packages that anybody can build again to the byte, and a list of what they depend on."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import re
import subprocess
import tarfile
import tomllib
import zipfile
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.system.features.test_new import uv

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HERE_AND_THERE: list[dict[str, Any]] = [
    {"umask": 0o022, "TZ": "UTC", "LC_ALL": "C", "PYTHONHASHSEED": "1"},
    {"umask": 0o077, "TZ": "Asia/Kathmandu", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2"},
]
"""Two machines: the rights of new files, and what a build might read of the environment."""


async def make(clone: Path, *targets: str, **env: Any) -> None:
    """Run targets of the Makefile in a clone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "VIRTUAL_ENV", "MAKE"))}
    process = await asyncio.create_subprocess_exec(
        "make", *targets, f"UV={uv()}", cwd=clone, env=kept | env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )  # fmt: skip
    out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()


@pytest.fixture(scope="module")
async def clones(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two clones of the commit, in folders of different names, with files of different times and rights; `make dist` ran in both."""
    made = []
    for name, machine in zip(("here", "far/away"), HERE_AND_THERE, strict=True):
        clone = tmp_path_factory.mktemp("clones") / name
        umask, env = machine["umask"], {key: value for key, value in machine.items() if key != "umask"}
        subprocess.run(["git", "clone", "--quiet", "--no-local", ROOT, clone], check=True, umask=umask)  # noqa: ASYNC221
        for number, path in enumerate(sorted(clone.rglob("*.*"))):
            os.utime(path, (10**9 + umask + number, 10**9 + umask + number), follow_symlinks=False)
        await make(clone, "dist", **env)
        made.append(clone)
    return made


def packages(clone: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (clone / "dist").iterdir() if not path.name.startswith(".")}


def test_two_builds_of_a_commit_are_equal_to_the_byte(clones: list[Path]) -> None:
    here, away = map(packages, clones)
    version = PROJECT["version"]
    assert set(here) == {f"mulligan-{version}-py3-none-any.whl", f"mulligan-{version}.tar.gz"}
    assert {name for name in here if here[name] != away.get(name)} == set()


def test_the_packages_have_the_time_of_the_commit_and_no_trace_of_the_builder(clones: list[Path]) -> None:
    asked = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=clones[0], check=True, capture_output=True, text=True
    )
    built = clones[0] / "dist"
    [source], [wheel] = built.glob("*.tar.gz"), built.glob("*.whl")
    with tarfile.open(source) as members:
        assert {(each.mtime, each.uid, each.gid, each.uname, each.gname) for each in members} == {
            (int(asked.stdout), 0, 0, "", "")
        }
    contents = [*zipfile.ZipFile(wheel).namelist(), gzip.decompress(source.read_bytes()).decode(errors="replace")]
    assert not [text for text in contents if str(clones[0]) in text]


@pytest.fixture(scope="module")
async def sbom(clones: list[Path]) -> dict[str, Any]:
    await make(clones[0], "sbom", **{key: str(value) for key, value in HERE_AND_THERE[0].items() if key != "umask"})
    found: dict[str, Any] = json.loads((clones[0] / "dist/mulligan.cdx.json").read_text())
    return found


VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

print(JsonStrictValidator(SchemaVersion.V1_6).validate_str(sys.stdin.read()) or "valid")
"""


@pytest.mark.parametrize("change", [{}, {"serialNumber": "none"}], ids=["valid", "the validator refuses a wrong one"])
async def test_the_sbom_is_valid_by_the_schema_of_cyclonedx(sbom: dict[str, Any], change: dict[str, str]) -> None:
    validator = await asyncio.create_subprocess_exec(
        uv(), "run", "--quiet", "--isolated", "--only-group", "release", "python", "-c", VALIDATE, cwd=ROOT,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await validator.communicate(json.dumps(sbom | change).encode())
    assert (sbom["bomFormat"], sbom["specVersion"]) == ("CycloneDX", "1.6")
    assert (out.decode().strip() == "valid") == (not change)


def test_the_sbom_has_each_dependency_in_the_pinned_version(sbom: dict[str, Any]) -> None:
    root = sbom["metadata"]["component"]
    assert (root["name"], root["version"], root["licenses"][0]["license"]["id"]) == (
        "mulligan",
        PROJECT["version"],
        "Apache-2.0",
    )
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "deploy/requirements.txt").read_text(), re.MULTILINE))
    listed = {canonicalize_name(each["name"]): each["version"] for each in sbom["components"]}
    assert listed.items() <= {canonicalize_name(name): version for name, version in pinned.items()}.items()
    asked = [*PROJECT["dependencies"], *chain.from_iterable(PROJECT["optional-dependencies"].values())]
    assert {canonicalize_name(Requirement(each).name) for each in asked} - {"mulligan"} <= set(listed)
    [direct] = [each["dependsOn"] for each in sbom["dependencies"] if each["ref"] == root["bom-ref"]]
    assert len(direct) >= len(PROJECT["dependencies"])


PERMISSIVE = re.compile(r"Apache|MIT|BSD|ISC|PSF|Python Software Foundation")
OTHERS = {"certifi": "MPL-2.0", "protobuf": ""}
"""Mozilla's list of authorities, which nobody changes; and a package that names its licence (BSD) in a file only."""


def test_whatever_is_installed_with_mulligan_has_a_permissive_licence(sbom: dict[str, Any]) -> None:
    """A new dependency with another licence is a decision: it is added above."""
    licences = {
        each["name"]: [
            name
            for choice in each.get("licenses", [])
            for name in (choice.get("expression") or choice["license"].get("id") or choice["license"]["name"],)
        ]
        for each in sbom["components"]
    }
    others = {name: "".join(said[:1]) for name, said in licences.items() if not any(map(PERMISSIVE.search, said))}
    assert others == OTHERS


def test_the_packages_have_the_licence_and_its_name(clones: list[Path]) -> None:
    licence = (ROOT / "LICENSE").read_bytes()
    built = clones[0] / "dist"
    [source], [wheel] = built.glob("*.tar.gz"), built.glob("*.whl")
    files = zipfile.ZipFile(wheel)
    [inside] = [name for name in files.namelist() if "/licenses/" in name]
    assert files.read(inside) == licence
    with tarfile.open(source) as members:
        name = f"mulligan-{PROJECT['version']}/LICENSE"
        member = members.extractfile(name)
        assert member is not None
        assert member.read() == licence
    [metadata] = [files.read(name).decode() for name in files.namelist() if name.endswith("METADATA")]
    assert "License-Expression: Apache-2.0\nLicense-File: LICENSE\n" in metadata


NOTICE = re.compile(rb"copyright|\(c\) ?(?:19|20)\d\d|SPDX-|@licen[sc]e|all rights reserved", re.IGNORECASE)


def test_nothing_of_others_is_shipped_without_its_notice(clones: list[Path]) -> None:
    """All files are our own, so none has a notice: scripts, styles and pictures of the console too. Prices name their sources."""
    [wheel] = (clones[0] / "dist").glob("*.whl")
    files = zipfile.ZipFile(wheel)
    ours = [name for name in files.namelist() if name.startswith("mulligan/")]
    assert not [name for name in ours if NOTICE.search(files.read(name))]
    assert not [name for name in ours if re.search(r"\.min\.|vendor|third.party|node_modules", name)]
    kinds = {"py", "pyi", "typed", "json", "txt", "md", "html", "css", "js", "svg"}
    assert {name.rpartition(".")[2] for name in ours} == kinds
    prices = json.loads(files.read("mulligan/prices.json"))
    assert prices["source"]
    assert prices["date"]
