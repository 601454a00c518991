"""Write the digest of each image into deploy/: `image:tag` becomes `image:tag@sha256:…`.

It needs the images' registries, and Docker or `crane`.

python .ci/pin_images.py [FOLDER]: the files of that folder, else of deploy/. Images that are built here are left out.
"""

import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

FILES = ("compose.yaml", "Dockerfile", "example/Dockerfile")
IMAGE = re.compile(r"^(\s*image: |FROM (?:--\S+ )?)([\w./-]+:[\w.-]+)(?:@sha256:[0-9a-f]{64})?(?=\s|$)", re.MULTILINE)
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@cache
def digest_of(image: str) -> str:
    """The digest of the image's index, which covers all platforms.

    Raises:
        SystemExit: the registry does not say.
    """
    command = ["docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}", image]
    if shutil.which("docker") is None:
        command = ["crane", "digest", image]
        if shutil.which("crane") is None:
            raise SystemExit("Install Docker or crane: one of them asks the registries for the digests.")
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    digest = ran.stdout.strip()
    if ran.returncode or not DIGEST.fullmatch(digest):
        raise SystemExit(f"{image} has no digest: {(ran.stderr or ran.stdout).strip()[:300]}. No file was changed.")
    return digest


def main() -> None:
    """Pin the images of all files, or of none."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent.parent / "deploy"
    texts = {folder / name: (folder / name).read_text() for name in FILES}
    pinned = {
        path: IMAGE.sub(lambda found: f"{found[1]}{found[2]}@{digest_of(found[2])}", text)
        for path, text in texts.items()
    }
    for path, text in pinned.items():
        path.write_text(text)


if __name__ == "__main__":
    main()
