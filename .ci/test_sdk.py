"""Run the tests of the workarounds for temporalio with several of its versions, once each.

python .ci/test_sdk.py [--others | --newest]: the versions in `TRIED_VERSIONS`; with `--others` without the pinned one, with
which the whole suite runs. CI does this: a release of temporalio cannot make it fail. `--newest`: the newest version that
pyproject.toml allows; it belongs into `TRIED_VERSIONS` where this passes.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from mulligan.worker.sdk_workarounds.workaround_runner import TRIED_VERSIONS

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
[ALLOWED] = [text for text in PROJECT["project"]["dependencies"] if text.startswith("temporalio")]
[PINNED] = re.findall(r"^temporalio==(\S+)", "\n".join(PROJECT["tool"]["uv"]["constraint-dependencies"]), re.MULTILINE)


def main() -> int:
    """Run them; returns the number of versions that failed."""
    versions = chosen_versions(sys.argv[1:])
    if not versions:
        print(f"test-sdk: no version but temporalio {PINNED} was tried: `make test` has it")
    failed = 0
    for version in versions:
        print(f"test-sdk: temporalio {version}", flush=True)
        other = [] if version == PINNED else ["--with", f"temporalio=={version}"]
        tests = ["pytest", "-q", "-n", "0", "-m", "sdk", "tests/unit", "tests/live"]
        failed += subprocess.run(["uv", "run", *other, *tests], cwd=ROOT).returncode != 0
    return failed


def chosen_versions(options: list[str]) -> list[str]:
    """The versions that these options name. Only `--newest` asks the package index."""
    if "--newest" in options:
        return [newest_allowed()]
    return sorted(TRIED_VERSIONS - ({PINNED} if "--others" in options else set()))


def newest_allowed() -> str:
    """The newest version of temporalio on the package index that pyproject.toml allows."""
    command = ["uv", "pip", "compile", "-", "--quiet", "--no-config", "--no-deps", "--no-header"]
    done = subprocess.run(command, input=f"{ALLOWED}\n", cwd=ROOT, capture_output=True, text=True, check=True)
    [version] = re.findall(r"^temporalio(?:\[.*\])?==(\S+)", done.stdout, re.MULTILINE)
    return version


if __name__ == "__main__":
    sys.exit(main())
