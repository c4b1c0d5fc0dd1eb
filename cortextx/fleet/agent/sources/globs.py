"""Which files a source may read, and what stands there now: globs, links, roots (S2).

All of this touches the disk and is called in a thread.
"""

from __future__ import annotations

import glob
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from cortextx.fleet.agent.sources.actions import Scan, Seen, Watch
from cortextx.fleet.agent.sources.compressed import Copy, copies
from cortextx.fleet.agent.sources.glob_forms import plain_glob, translated
from cortextx.fleet.agent.sources.identity import FileStat, decode_checkpoint, is_compressed

_MAGIC = re.compile(r"[*?\[]")
TICK_NS = 100_000_000
"""Changes of a directory less far apart than this may have one time."""
_UNCLEAN = re.compile("[\x00-\x1f\x7f\x80-\x9f\ud800-\udfff]")


class NotAllowed(Exception):
    """A file that this source must not read (S2, F18); the text says why."""


def static_root(pattern: str) -> str:
    """The directory above all that a glob can match: its part before the first wildcard."""
    found = _MAGIC.search(pattern)
    return os.path.dirname(pattern if found is None else pattern[: found.start()]) or "/"


def shown_path(path: str) -> str:
    """A path as text for `source`: control characters and bytes that are no UTF-8 are
    percent-encoded (F32, A34)."""
    return _UNCLEAN.sub(lambda found: _percent(found[0]), path)


def _percent(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogateescape"))


def glob_test(patterns: Sequence[str]) -> Callable[[str], bool]:
    """A test whether a path is matched by one of these globs; `**` spans directories."""
    regexes = [re.compile(translated(pattern), re.DOTALL) for pattern in patterns]
    return lambda path: any(regex.fullmatch(path) for regex in regexes)


def facts(found: os.stat_result) -> FileStat:
    """What the tailer wants of a stat result."""
    return FileStat(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_nlink)


class Grounds:
    """What a source may read: real paths below `roots`, none below `excluded` (A35), as
    the globs of `allowed` say, where they are given (F18), and none that `left_out` match."""

    def __init__(
        self,
        roots: Sequence[str],
        excluded: Sequence[str] = (),
        allowed: Sequence[str] = (),
        left_out: Sequence[str] = (),
    ) -> None:
        self._roots = [_folder(os.path.realpath(root)) for root in roots]
        self._excluded = [_folder(os.path.realpath(path)) for path in excluded]
        self._allowed = glob_test(allowed) if allowed else None
        self._left_out = glob_test(left_out) if left_out else None
        self.refused: set[str] = set()
        """Matched paths of the last scan that lead elsewhere."""

    def covers(self, real: str) -> bool:
        """Whether a path without links lies where this source may read."""
        return any(real.startswith(root) for root in self._roots) and not any(
            real.startswith(path) for path in self._excluded
        )

    def wants(self, path: str) -> bool:
        """Whether a matched path is allowed by name."""
        if self._left_out is not None and self._left_out(path):
            return False
        return self._allowed is None or self._allowed(path)

    def open(self, real: str) -> int:
        """Open a regular file for reading without following a link, and check where the
        kernel says that it is. Raises NotAllowed, or OSError."""
        descriptor = os.open(
            real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
        )
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise NotAllowed(f"{real}: not a regular file")
            actual = where(descriptor)
            if not self.covers(real if actual is None else actual):
                raise NotAllowed(f"{real}: outside the directories that this source may read")
            if found.st_nlink > 1 and _is_foreign(found, os.path.dirname(real)):
                raise NotAllowed(f"{real}: a hard link that a stranger may have made")
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


def _folder(path: str) -> str:
    return path.rstrip("/") + "/"


def where(descriptor: int) -> str | None:
    """Where an open file is now, by the kernel's word; None if deleted or not known."""
    try:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return None
    return None if path.endswith(" (deleted)") else path


def _is_foreign(found: os.stat_result, directory: str) -> bool:
    """A second link to another's file, in a directory where others may make links (S2)."""
    parent = os.stat(directory)
    trusted = parent.st_uid in (0, os.geteuid()) and not parent.st_mode & 0o022
    shared = bool(parent.st_mode & 0o022)
    return not trusted and (shared or found.st_uid != parent.st_uid)


def scan(
    patterns: Sequence[str], grounds: Grounds, watch: Watch, descriptors: Mapping[int, int]
) -> Scan:
    """See what stands where. `descriptors` are the open files by handle."""
    look = _Matches(grounds, watch)
    for pattern in patterns:
        look.at(pattern)
    files, matched, calm = look.files, look.matched, watch.calm
    awake = calm.missed(look.calm)
    shown = {seen.real for seen in files}
    directories = set(watch.directories)
    for home, (identity, path) in watch.homes.items():
        here = matched.get(home)
        directory = os.path.dirname(path)
        if here == identity or directory in directories:
            continue
        if here is None and home in watch.vacant and _unchanged(directory, watch.listed):
            continue
        directories.add(directory)
    directories |= {
        os.path.dirname(decode_checkpoint(calm.checkpoint(home)).path)
        for home in awake
        if matched.get(home) != calm.identity(home)
    }
    listed = {}
    packed: list[Copy] = []
    for directory in directories:
        changed = 0
        try:
            changed = _changed(directory)
            names = os.listdir(directory)
        except (FileNotFoundError, NotADirectoryError):
            names = []
        except OSError:
            continue
        listed[directory] = changed
        places = [os.path.join(directory, name) for name in names]
        files += _unmatched(places, shown, grounds)
        packed += copies(path for path in places if grounds.covers(path))
    files += _unmatched(watch.strays, shown, grounds)
    met = {seen.stat.identity for seen in files}
    handles = {}
    for handle, identity in watch.handles.items():
        if identity not in met and handle in descriptors:
            found = _ask(descriptors[handle], identity)
            if found is not None:
                handles[handle] = found
    if look.calm:
        # What rests at its home is no other file, whatever else leads to it.
        again = calm.among(seen.stat.identity for seen in files)
        again -= {calm.identity(home) for home in awake}
        files = [seen for seen in files if seen.stat.identity not in again]
    return Scan(
        files, handles, listed, awake, look.counts, look.beyond, look.more, packed, look.calm_in
    )


class _Matches:
    """What the globs of one scan match: files that are not calm, and which of the calm ones
    are as they were."""

    def __init__(self, grounds: Grounds, watch: Watch) -> None:
        self._grounds = grounds
        self._watch = watch
        self._known: set[tuple[int, int]] | None = None
        self._directories: dict[str, str] = {}
        self._new = 0
        self.files: list[Seen] = []
        self.matched: dict[str, tuple[int, int]] = {}
        self.calm: set[int] = set()
        self.calm_in: Counter[str] = Counter()
        self.counts: dict[str, int] = {}
        self.beyond: dict[str, int] = {}
        self.more = False

    def at(self, pattern: str) -> None:
        """Look at all that one glob matches."""
        count = 0
        watch = self._watch
        for path in glob.iglob(plain_glob(pattern), recursive=True):
            if path in self.matched:
                count += 1
                continue
            if path in watch.calm and self._rests(path):
                count += 1
                continue
            if is_compressed(path) or not self._grounds.wants(path):
                continue
            seen = _look(path, self._grounds, self._directories)
            if seen is None:
                continue
            count += 1
            if self._may_come(pattern, seen):
                self.matched[path] = seen.stat.identity
                self.files.append(seen)
        self.counts[pattern] = count

    def _rests(self, path: str) -> bool:
        try:
            mark = self._watch.calm.mark_of(path, os.stat(path))
        except OSError:
            return False
        if mark is None:
            return False
        self.calm.add(mark)
        directory = os.path.dirname(path)
        if directory not in self._directories:
            self._directories[directory] = os.path.realpath(directory)
        self.calm_in[self._directories[directory]] += 1
        return True

    def _may_come(self, pattern: str, seen: Seen) -> bool:
        """Whether a file is known, or may come new with this scan."""
        watch = self._watch
        if seen.path in watch.homes or seen.path in watch.calm:
            return True
        self._new += 1
        if self._new <= min(watch.step, watch.room):
            return True
        if self._known is None:
            self._known = watch.calm.identities() | set(watch.handles.values())
            self._known |= {identity for identity, _ in watch.homes.values()}
        if seen.stat.identity in self._known:
            return True
        if self._new <= watch.room:
            self.more = True
        else:
            self.beyond[pattern] = self.beyond.get(pattern, 0) + 1
        return False


def _changed(directory: str) -> int:
    """A directory's time of change (ns); 0 while the next change may have the same."""
    changed = os.stat(directory).st_mtime_ns
    return changed if time.time_ns() - changed > TICK_NS else 0


def _unchanged(directory: str, listed: Mapping[str, int]) -> bool:
    before = listed.get(directory, 0)
    try:
        return before != 0 and os.stat(directory).st_mtime_ns == before
    except OSError:
        return True


def _look(path: str, grounds: Grounds, directories: dict[str, str]) -> Seen | None:
    """A matched path, if it leads to a regular file where this source may read."""
    try:
        found = os.lstat(path)
        directory, name = os.path.split(path)
        if stat.S_ISLNK(found.st_mode):
            real = os.path.realpath(path)
            found = os.lstat(real)
        else:
            if directory not in directories:
                directories[directory] = os.path.realpath(directory)
            real = os.path.join(directories[directory], name)
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode) or is_compressed(real):
        return None
    if not grounds.covers(real):
        if real != path:
            grounds.refused.add(path)
        return None
    return Seen(path, real, facts(found), True)


def _unmatched(
    paths: Sequence[str] | Iterator[str], shown: set[str], grounds: Grounds
) -> list[Seen]:
    files = []
    for path in paths:
        if path in shown or is_compressed(path) or not grounds.covers(path):
            continue
        try:
            found = os.lstat(path)
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode):
            shown.add(path)
            files.append(Seen(path, path, facts(found), False))
    return files


def _ask(descriptor: int, identity: tuple[int, int]) -> tuple[FileStat, str | None] | None:
    """An open file's stat and path; None if the descriptor is another's by now."""
    try:
        found = facts(os.fstat(descriptor))
    except OSError:
        return None
    return (found, where(descriptor)) if found.identity == identity else None
