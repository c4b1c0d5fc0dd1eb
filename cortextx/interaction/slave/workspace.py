"""Where a run may work: by real path, below the agent's root (I27, S1). Blocks on the disk."""

from __future__ import annotations

import os

from cortextx.errors import CortexError
from cortextx.interaction.faults import Code


class PlaceRefused(CortexError):
    """A directory may not be worked in; `errno` is the name for v1 clients."""

    def __init__(self, code: Code, errno: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.errno = errno


def checked_places(root: str, workspace: str | None, cwd: str | None) -> tuple[str | None, str]:
    """The real paths of cwd (None: not given) and workspace; raises PlaceRefused."""
    top = os.path.realpath(root)
    space = top if workspace is None else _inside(workspace, top, "workspace", "the agent's root")
    return (None if cwd is None else _inside(cwd, space, "cwd", "the workspace")), space


def _inside(path: str, top: str, what: str, where: str) -> str:
    if not path.startswith("/") or "\0" in path:
        raise PlaceRefused(Code.BAD_FRAME, "EINVAL", f"{what} is not an absolute path")
    try:
        real = os.path.realpath(path, strict=True)
    except OSError:
        raise PlaceRefused(Code.BAD_FRAME, "ENOENT", f"{what} is not there") from None
    if os.path.commonpath((real, top)) != top:
        raise PlaceRefused(Code.FORBIDDEN, "EACCES", f"{what} is outside {where}")
    if not os.path.isdir(real):
        raise PlaceRefused(Code.BAD_FRAME, "ENOTDIR", f"{what} is not a directory")
    return real
