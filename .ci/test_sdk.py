"""Run the tests of the workarounds for temporalio with each version that pyproject.toml sets apart, once each.

python .ci/test_sdk.py [--others]: the oldest allowed version, the pinned one and the newest allowed one; with `--others`
without the pinned one, with which the whole suite runs.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RANGE = re.compile(r"temporalio(?:\[.*\])?(>=.*)")


def main() -> int:
    """Run them; returns the number of versions that failed."""
    [bounds] = [found[1] for each in PROJECT["project"]["dependencies"] if (found := RANGE.fullmatch(each))]
    pins = PROJECT["tool"]["uv"]["constraint-dependencies"]
    [pinned] = [each.removeprefix("temporalio==") for each in pins if each.startswith("temporalio==")]
    versions = {resolved(bounds, "lowest-direct"), pinned, resolved(bounds, "highest")}
    chosen = versions - ({pinned} if "--others" in sys.argv[1:] else set())
    if not chosen:
        print(f"test-sdk: temporalio {pinned} is the oldest and the newest allowed version: `make test` has it")
    failed = 0
    for version in sorted(chosen):
        print(f"test-sdk: temporalio {version}", flush=True)
        other = [] if version == pinned else ["--with", f"temporalio=={version}"]
        tests = ["pytest", "-q", "-n", "0", "-m", "sdk", "tests/unit", "tests/live"]
        failed += subprocess.run(["uv", "run", *other, *tests], cwd=ROOT).returncode != 0
    return failed


def resolved(bounds: str, resolution: str) -> str:
    """The version of temporalio that the package index gives for these bounds."""
    command = [
        "uv",
        "pip",
        "compile",
        "-",
        "--quiet",
        "--no-config",
        "--no-deps",
        "--no-header",
        "--resolution",
        resolution,
    ]
    done = subprocess.run(command, input=f"temporalio{bounds}\n", cwd=ROOT, capture_output=True, text=True, check=True)
    [version] = re.findall(r"^temporalio==(\S+)", done.stdout, re.MULTILINE)
    return version


if __name__ == "__main__":
    sys.exit(main())
