"""What an operator should know of a source's files: how many, which are not read, and why."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from twisted.python.failure import Failure

from cortextx.fleet.agent.sources.actions import Scan
from cortextx.fleet.agent.sources.globs import NotAllowed, static_root
from cortextx.fleet.agent.sources.tailer import GONE

MAX_FAULTS = 1000
"""Files whose faults are known, for a status."""


@dataclass(slots=True)
class _Fault:
    """Why a file is not read; `identity` is that of the file, once a scan has told it."""

    why: str
    identity: tuple[int, int] | None = None


class Faults:
    """The files that cannot be read."""

    def __init__(self) -> None:
        self._by_path: dict[str, _Fault] = {}

    def __bool__(self) -> bool:
        return bool(self._by_path)

    @property
    def why(self) -> dict[str, str]:
        """The reasons, by path."""
        return {path: fault.why for path, fault in self._by_path.items()}

    def note(self, path: str | None, failure: Failure) -> int:
        """Remember why an Open or a Read of a file failed; answers the errno."""
        if failure.check(NotAllowed):
            code = errno.EACCES
            why = failure.getErrorMessage().removeprefix(f"{path}: ")
        else:
            failure.trap(OSError)
            error = failure.value
            code = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
            why = f"cannot be read ({os.strerror(code)})"
        if path is not None and code not in GONE:
            self.add(path, why)
        return code

    def add(self, path: str, why: str) -> None:
        """Remember why a file is not read."""
        if path in self._by_path or len(self._by_path) < MAX_FAULTS:
            self._by_path[path] = _Fault(why)

    def read(self, path: str) -> None:
        """A file was read."""
        self._by_path.pop(path, None)

    def scanned(self, found: Scan) -> None:
        """Forget those of paths where nothing stands any more, or another file."""
        if not self._by_path:
            return
        there = {seen.real: seen.stat.identity for seen in found.files}
        there |= {seen.path: seen.stat.identity for seen in found.files}
        for path, fault in list(self._by_path.items()):
            if path not in there or fault.identity not in (None, there[path]):
                del self._by_path[path]
            else:
                fault.identity = there[path]


class Survey:
    """How many files each glob matched in the last scan; `of` is called in its thread."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = list(patterns)
        self.beyond: dict[str, int] = {}
        """Files by glob that there is no room for."""
        self.files: dict[str, int] | None = None
        self.why: dict[str, str] = {}

    def of(self, found: Scan) -> Scan:
        """Take in what a scan found; answers it."""
        self.files = {pattern: found.counts.get(pattern, 0) for pattern in self._patterns}
        self.beyond = dict(found.beyond)
        self.why = {
            pattern: _why_none(pattern) for pattern, count in self.files.items() if not count
        }
        return found

    @property
    def matched(self) -> int:
        """Files that any glob matched."""
        return sum((self.files or {}).values())


def _why_none(pattern: str) -> str:
    """Why a glob matches no file, as far as that can be seen."""
    root = static_root(pattern)
    try:
        os.scandir(root).close()
    except OSError as error:
        return f"{root}: {error.strerror}"
    return "no file matches"


def roots_of(patterns: Iterable[str]) -> list[str]:
    """The directories that globs begin in, without links."""
    return sorted({os.path.realpath(static_root(pattern)) for pattern in patterns})
