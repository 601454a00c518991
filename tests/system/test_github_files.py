"""What GitHub reads of the repository: the workflow that publishes, forms for issues, the dev container. Nothing is published here."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.system.features.test_new import uv

ROOT = Path(__file__).parents[2]
RELEASE, TEST = ROOT / ".github/workflows/release.yml", ROOT / ".github/workflows/test.yml"
FORMS = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
ACTION = re.compile(r"uses: (\S+)@(\S+) # (v[\d.]+)$", re.MULTILINE)
"""An action by its commit, with the version that the commit had when it was looked up."""


@pytest.fixture(scope="module")
def jobs() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(RELEASE.read_text())["jobs"]
    return found


def checked(*command: str | Path) -> tuple[int, str]:
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


WRONG = [
    ("needs: build", "needs: bild"),
    ("github.ref }}", "github.reff }}"),
    ("runs-on: ubuntu-24.04", "runs-on: ubuntu-1"),
]


def test_actionlint_finds_nothing_in_the_workflow(actionlint_program: Path, tmp_path: Path) -> None:
    """And finds what is wrong in a wrong copy."""
    assert checked(actionlint_program, "-no-color", RELEASE) == (0, "")
    for right, wrong in WRONG:
        assert right in RELEASE.read_text()
        (tmp_path / "release.yml").write_text(RELEASE.read_text().replace(right, wrong))
        assert checked(actionlint_program, "-no-color", tmp_path / "release.yml")[0] == 1, wrong


def zizmor(file: Path) -> tuple[int, str]:
    """Its audits that need no network."""
    program = Path(sys.executable).with_name("zizmor")
    return checked(program, "--offline", "--no-config", "--persona=pedantic", "--quiet", "--no-progress", file)


INSECURE = [
    ("enable-cache: false", "enable-cache: true"),
    ("@3d3c42e5aac5ba805825da76410c181273ba90b1", "@main"),
    ("permissions: {}", "permissions: write-all"),
    ('test "v$(uv version --short)"', 'test "${{ github.event.head_commit.message }}"'),
]


def test_zizmor_finds_no_insecure_step(tmp_path: Path) -> None:
    """And finds each of these in a copy."""
    for file in (RELEASE, TEST):
        code, said = zizmor(file)
        assert code == 0, said
    for right, wrong in INSECURE:
        assert right in RELEASE.read_text()
        (tmp_path / "release.yml").write_text(RELEASE.read_text().replace(right, wrong))
        assert zizmor(tmp_path / "release.yml")[0] != 0, wrong


@pytest.mark.parametrize("file", [RELEASE, TEST, *FORMS], ids=lambda file: file.name)
def test_each_file_is_valid_by_its_schema(file: Path, tmp_path: Path) -> None:
    """Issue forms have no other check before GitHub shows them, or does not."""
    workflows = dict.fromkeys(("release.yml", "test.yml"), "github-workflows")
    kinds = {**workflows, "config.yml": "github-issue-config"}
    check: list[str | Path] = [Path(sys.executable).with_name("check-jsonschema"), "--builtin-schema"]
    check.append(f"vendor.{kinds.get(file.name, 'github-issue-forms')}")
    code, said = checked(*check, file)
    assert code == 0, said
    (tmp_path / file.name).write_text(
        re.sub(r"\b(required|runs-on|blank_issues_enabled):.*", r"\1: 7", file.read_text())
    )
    assert checked(*check, tmp_path / file.name)[0] == 1


def test_each_action_is_pinned_by_its_commit() -> None:
    """A tag can be moved by whoever owns the action, a commit cannot. One action has one version."""
    text = RELEASE.read_text() + TEST.read_text()
    pinned = ACTION.findall(text)
    assert len(pinned) == text.count("uses: ") - text.count("uses: ./")
    assert all(re.fullmatch(r"[0-9a-f]{40}", commit) for _, commit, _ in pinned)
    assert len(set(pinned)) == len({name for name, _, _ in pinned})


def test_no_job_has_more_rights_than_it_needs(jobs: dict[str, Any]) -> None:
    """Our code runs where nothing can be signed or published; where it can, only actions run."""
    assert yaml.safe_load(RELEASE.read_text())["permissions"] == {}
    assert {name: job["permissions"] for name, job in jobs.items()} == {
        "test": {"contents": "read"},
        "build": {"contents": "read"},
        "attest": {"id-token": "write", "attestations": "write"},
        "publish": {"id-token": "write"},
    }
    assert [name for name, job in jobs.items() if any("run" in step for step in job.get("steps", ()))] == ["build"]
    assert "secrets." not in RELEASE.read_text()
    assert jobs["build"]["steps"][0]["with"] == {"persist-credentials": False}
    assert jobs["publish"]["environment"] == "pypi"
    tests = yaml.safe_load(TEST.read_text())
    assert (tests["permissions"], tests["jobs"]["test"]["permissions"]) == ({}, {"contents": "read"})


def test_what_is_published_was_tested_built_and_attested_first(jobs: dict[str, Any]) -> None:
    assert jobs["test"]["uses"] == f"./{TEST.relative_to(ROOT)}"
    assert [jobs[name]["needs"] for name in ("build", "attest", "publish")] == ["test", "build", "attest"]
    uploaded = {
        step["with"]["name"]: step["with"]["path"] for step in jobs["build"]["steps"] if "path" in step.get("with", {})
    }
    assert uploaded == {"packages": "dist/*.whl\ndist/*.tar.gz\n", "sbom": "dist/*.cdx.json"}
    fetched = jobs["publish"]["steps"][0]["with"]
    assert (fetched["name"], fetched["path"]) == ("packages", "dist")
    signed = [step["with"] for step in jobs["attest"]["steps"][1:]]
    assert signed == [
        {"subject-path": "packages/*"},
        {"subject-path": "packages/*", "sbom-path": "sbom/mulligan.cdx.json"},
    ]


def test_a_tag_that_is_not_the_version_is_not_published(jobs: dict[str, Any], tmp_path: Path) -> None:
    """The step before anything is built fails, also for a tag of the release while the tree is still on the way to it."""
    names = [step.get("name") for step in jobs["build"]["steps"]]
    compare = jobs["build"]["steps"][names.index("Compare the tag with the version")]["run"]
    assert names.index("Compare the tag with the version") < [step.get("run") for step in jobs["build"]["steps"]].index(
        "make dist sbom"
    )

    def accepts(version: str, tag: str) -> bool:
        (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "mulligan"\nversion = "{version}"\n')
        env = {**os.environ, "GITHUB_REF_NAME": tag, "PATH": f"{Path(uv()).parent}:{os.environ['PATH']}"}
        return subprocess.run(["bash", "-e", "-c", compare], cwd=tmp_path, env=env, check=False).returncode == 0

    assert accepts("0.1.0", "v0.1.0")
    assert not accepts("0.1.0", "v0.1.1")
    assert not accepts("0.1.0", "0.1.0")
    assert not accepts("0.1.0.dev0", "v0.1.0")


MAKEFILE = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_each_target_that_these_files_name_exists() -> None:
    for name in (
        ".github/workflows/release.yml",
        "CONTRIBUTING.md",
        "SECURITY.md",
        ".devcontainer/devcontainer.json",
    ):
        text = (ROOT / name).read_text()
        asked = {
            target
            for line in re.findall(r"\bmake ((?:[a-z-]+ ?)+)", text)
            for target in line.split()
            if target in MAKEFILE
        }
        assert asked, name
        assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= MAKEFILE, name


def test_the_dev_container_runs_what_readme_says() -> None:
    """Its first command is that of README.md, its Python is supported, and its ports are the commands' own."""
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    readme = (ROOT / "README.md").read_text()
    assert f"```sh\n{container['postCreateCommand']}\n" in readme
    text = (ROOT / ".devcontainer" / container["build"]["dockerfile"]).read_text()
    assert f"useradd --uid 1000 --user-group --create-home --shell /bin/bash {container['remoteUser']}\nCOPY" in text
    assert text.endswith("USER 1000:1000\n")
    packages = re.findall(r"apt-get install (.+?) \\", text)[0].split()
    assert {"make", "git", "npm", "chromium"} <= set(packages)
    froms = re.findall(r"^FROM (.+)$", text, re.MULTILINE)
    assert set(froms) <= set(
        re.findall(r"^FROM (.+?)(?: AS build)?$", (ROOT / "deploy/Dockerfile").read_text(), re.MULTILINE)
    )
    code, _ = checked(Path(sys.executable).with_name("hadolint"), ROOT / ".devcontainer/Dockerfile")
    assert code == 0
    for command, port in (("dev.py", 7233), ("serve.py", 8300)):
        assert re.search(rf"\bport: .*= {port}\b", (ROOT / "mulligan/cli" / command).read_text())
        assert port in container["forwardPorts"]
    assert [int(port) for port in container["portsAttributes"]] == container["forwardPorts"]


def test_uv_has_one_version_in_all_files() -> None:
    found = {
        version
        for name in (
            "deploy/Dockerfile",
            ".devcontainer/Dockerfile",
            ".github/workflows/release.yml",
            ".github/workflows/test.yml",
        )
        for version in re.findall(
            r"astral-sh/uv:([\d.]+)|^ +version: ([\d.]+)$", (ROOT / name).read_text(), re.MULTILINE
        )
    }
    assert len({"".join(pair) for pair in found}) == 1
