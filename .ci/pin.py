"""Write the versions that uv resolved into pyproject.toml: what a lock file pins, without an index's address.

Of Mulligan's own, also the version of the build backend, and the hashes of what deploy/Dockerfile installs.

python .ci/pin.py [FOLDER]: of the project in that folder, else of Mulligan's own.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

PROJECT = (Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent.parent) / "pyproject.toml"
OWN = not sys.argv[1:] or Path(sys.argv[1]).resolve() == Path(__file__).parent.parent.resolve()
EXPORTS = {
    "deploy/requirements.txt": ["--no-dev", "--extra", "all"],
    "deploy/build-requirements.txt": ["--only-group", "build"],
}
BEGIN, END = "# versions: begin (written by `make pin`)", "# versions: end"


def main() -> None:
    """Replace what stands between the marks."""
    lock = tomllib.loads((PROJECT.parent / "uv.lock").read_text())
    # A package may have two versions, one for older Pythons: who depends on it says which is taken where.
    where = {
        (wanted["name"], wanted["version"]): f" ; {wanted['marker']}"
        for package in lock["package"]
        for wanted in package.get("dependencies", [])
        if "version" in wanted and "marker" in wanted
    }
    packages = sorted(
        f'    "{name}=={version}{where.get((name, version), "")}",'
        for name, version in (
            (package["name"], package["version"]) for package in lock["package"] if "registry" in package["source"]
        )
    )
    pinned = "\n".join([BEGIN, "constraint-dependencies = [", *packages, "]", END])
    text = PROJECT.read_text()
    backend = next(package["version"] for package in lock["package"] if package["name"] == "hatchling") if OWN else ""
    text = re.sub(r'(?m)^requires = \["hatchling==.*"\]$', f'requires = ["hatchling=={backend}"]', text)
    PROJECT.write_text(re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: pinned, text, flags=re.DOTALL))
    subprocess.run(["uv", "lock", "--quiet"], cwd=PROJECT.parent, check=True)
    for name, what in EXPORTS.items() if OWN else ():
        command = ["uv", "export", "--quiet", "--no-emit-project", "--no-header", "--no-annotate", *what, "-o", name]
        subprocess.run(command, cwd=PROJECT.parent, stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    main()
