"""The versions beside each other: a folder for each, `latest` with the newest, and the list that the pages' switch reads.

A site keeps the folders that it has: building each release into the same folder adds a version.
"""

import json
import shutil
from pathlib import Path

from packaging.version import Version
from sphinx.application import Sphinx

ENTRY = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Mulligan</title>
<meta http-equiv="refresh" content="0; url=latest/index.html"><a href="latest/index.html">Mulligan</a></html>
"""


def write(app: Sphinx, fault: Exception | None) -> None:
    """Write `versions.js`, `latest/`, and an `index.html` that leads there, beside the folder that was built."""
    out = Path(app.outdir)
    if fault or out.name != app.config.release:
        return
    names = [folder.parent.name for folder in out.parent.glob("*/objects.inv") if folder.parent.name != "latest"]
    names.sort(key=Version, reverse=True)
    (out.parent / "versions.js").write_text(f"window.docsVersions = {json.dumps(names)};\n")
    if out.name == names[0]:
        shutil.rmtree(out.parent / "latest", ignore_errors=True)
        shutil.copytree(out, out.parent / "latest", ignore=shutil.ignore_patterns(".doctrees", ".buildinfo"))
    (out.parent / "index.html").write_text(ENTRY)
