"""Programs from outside that a test needs, and what happens without them."""

from __future__ import annotations

import os
import shutil
import sys

from twisted.trial.unittest import SkipTest

REQUIRE = "REQUIRE_PEERS"
SYSTEM_PATH = os.pathsep.join(
    (os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin")
)
"""Debian keeps logrotate and the like where a user's PATH does not look, and pip may
have put a peer beside the interpreter."""


def need(program: str) -> str:
    """The path of a program. Without it the test is skipped, or fails if REQUIRE_PEERS=1."""
    found = shutil.which(program, path=SYSTEM_PATH)
    if found is not None:
        return found
    if os.environ.get(REQUIRE) == "1":
        raise AssertionError(f"{program} is missing, and {REQUIRE}=1 says that it must be there")
    raise SkipTest(f"{program} is not installed")
