"""The programs of the system tests: `make programs`. Where one is missing, the tests themselves get it, and wait for it."""

from __future__ import annotations

import asyncio

from tests.support.chromium import install_chromium
from tests.support.go_programs import make_all, say_on_stderr

if __name__ == "__main__":
    asyncio.run(install_chromium(say_on_stderr))
    asyncio.run(make_all(say_on_stderr))
