"""A disk that remembers everything, and what a crash may leave of it.

`SimulatedDisk` plays the role `cortextx.fleet.agent.disk.Disk` in memory. It logs
every write, truncation, sync, creation, rename and removal. `crash_states` then
yields the disks that a power cut at any point of the log may leave: what was
synced is there, of the rest any subset, the last write of it whole, torn or as
zeros. A file's sync says nothing about its name: only `sync_directory` does.

It can also be full (`capacity`), fail on command (`fail`), rot (`damage`) and
become unreadable in places (`unreadable`).
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cortextx.fleet.agent.disk import DiskFile


@dataclass(frozen=True, slots=True)
class Created:
    """A new, empty file got a name."""

    name: str
    inode: int


@dataclass(frozen=True, slots=True)
class Written:
    """Bytes were written into a file."""

    inode: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncated:
    """A file was cut or extended to `size`."""

    inode: int
    size: int


@dataclass(frozen=True, slots=True)
class Synced:
    """A file's content was made durable."""

    inode: int


@dataclass(frozen=True, slots=True)
class Renamed:
    """A file got another name."""

    old: str
    new: str
    inode: int


@dataclass(frozen=True, slots=True)
class Unlinked:
    """A name was removed."""

    name: str


@dataclass(frozen=True, slots=True)
class DirectorySynced:
    """All names were made durable."""


@dataclass(frozen=True, slots=True)
class Marked:
    """The test noted something here, such as what was promised by now."""

    value: Any


DataOperation = Written | Truncated
NameOperation = Created | Renamed | Unlinked
Operation = DataOperation | NameOperation | Synced | DirectorySynced | Marked


@dataclass(frozen=True, slots=True)
class CrashState:
    """What a crash left.

    `at` is how many operations of the log had been issued, `kept` what of the
    unsynced survived, in words; `marks` are the values noted until then.
    """

    at: int
    kept: str
    marks: tuple[Any, ...]
    files: dict[str, bytes]

    def disk(self) -> SimulatedDisk:
        """A fresh disk with these files, all of it durable."""
        return SimulatedDisk(self.files)


class SimulatedFile:
    """An open file of a SimulatedDisk."""

    def __init__(self, disk: SimulatedDisk, inode: int) -> None:
        self._disk = disk
        self.inode = inode
        self.closed = False

    def write_at(self, offset: int, parts: Sequence[bytes]) -> None:
        """Write; what does not fit on the disk, or a failure told to, cuts it short."""
        self._disk._write(self.inode, offset, b"".join(parts))

    def read_at(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; EIO where the file is unreadable."""
        for start, end in self._disk.unreadable.get(self.inode, ()):
            if offset < end and start < offset + size:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._disk.bytes_read += size
        return bytes(self._disk._contents[self.inode][offset : offset + size])

    def truncate(self, size: int) -> None:
        """Cut or extend."""
        self._disk._may_fail("truncate")
        self._disk._record(Truncated(self.inode, size))

    def sync(self) -> None:
        """Make the content durable."""
        self._disk._may_fail("sync")
        self._disk._record(Synced(self.inode))

    def size(self) -> int:
        """The size in bytes."""
        return len(self._disk._contents[self.inode])

    def close(self) -> None:
        """Close."""
        self.closed = True


class SimulatedDisk:
    """A directory in memory, with a log of all that was done to it."""

    def __init__(self, files: dict[str, bytes] | None = None, capacity: int = 2**40) -> None:
        self.capacity = capacity
        """Bytes that fit; reaching it, a write is cut short with ENOSPC."""
        self.log: list[Operation] = []
        self.unreadable: dict[int, list[tuple[int, int]]] = {}
        self.bytes_read = 0
        self.closed = False
        self._faults: dict[str, list[tuple[int, int]]] = {}
        self._names: dict[str, int] = {}
        self._contents: dict[int, bytearray] = {}
        for inode, (name, content) in enumerate((files or {}).items()):
            self._names[name] = inode
            self._contents[inode] = bytearray(content)
        self._initial_names = dict(self._names)
        self._initial_contents = {i: bytes(c) for i, c in self._contents.items()}

    # The role

    def names(self) -> list[str]:
        """The names of all files."""
        return list(self._names)

    def create(self, name: str) -> DiskFile:
        """A new, empty file."""
        self._may_fail("create")
        if name in self._names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
        inode = len(self._contents)
        self._record(Created(name, inode))
        return SimulatedFile(self, inode)

    def open(self, name: str) -> DiskFile:
        """Open a file."""
        self._may_fail("open")
        return SimulatedFile(self, self._inode(name))

    def size(self, name: str) -> int:
        """A file's size."""
        return len(self._contents[self._inode(name)])

    def rename(self, old: str, new: str) -> None:
        """Give a file another name."""
        self._may_fail("rename")
        self._record(Renamed(old, new, self._inode(old)))

    def unlink(self, name: str) -> None:
        """Remove a name."""
        self._may_fail("unlink")
        self._inode(name)
        self._record(Unlinked(name))

    def sync_directory(self) -> None:
        """Make all names durable."""
        self._may_fail("sync_directory")
        self._record(DirectorySynced())

    def free(self) -> int:
        """What is left of `capacity`."""
        return max(0, self.capacity - self._used())

    def close(self) -> None:
        """Note that the directory was given back."""
        self.closed = True

    # For tests

    def mark(self, value: Any) -> None:
        """Note `value` in the log, for `CrashState.marks`."""
        self._record(Marked(value))

    def fail(self, operation: str, code: int = errno.EIO, after: int = 0) -> None:
        """Let the next `operation` (a method's name; `write` for write_at) fail once.

        `after` is how many go well before; a failing write leaves half of its bytes.
        """
        self._faults.setdefault(operation, []).append((after, code))

    def damage(self, name: str, offset: int, data: bytes) -> None:
        """Change bytes of a file, as rot does: without any operation."""
        content = self._contents[self._inode(name)]
        content[offset : offset + len(data)] = data

    def make_unreadable(self, name: str, start: int, end: int) -> None:
        """Let reads of these bytes fail with EIO."""
        self.unreadable.setdefault(self._inode(name), []).append((start, end))

    def files(self) -> dict[str, bytes]:
        """All files as they are now: what a killed process leaves to the next."""
        return {name: bytes(self._contents[inode]) for name, inode in self._names.items()}

    def crash_states(self, limit: int = 64, seed: int = 0) -> Iterator[CrashState]:
        """What a crash after each operation may leave, without repeats.

        Up to `limit` subsets of what was unsynced are tried at each point: all of
        them if there are no more, else the prefixes, each one missing, each one
        alone, and others at random from `seed`.
        """
        chance = random.Random(seed)  # noqa: S311 - for choosing, not for secrets
        crash = _Crash(self._initial_names, self._initial_contents)
        marks: list[Any] = []
        seen: set[tuple[int, frozenset[tuple[str, bytes]]]] = set()
        for at in range(len(self.log) + 1):
            if at:
                operation = self.log[at - 1]
                if isinstance(operation, Marked):
                    marks.append(operation.value)
                else:
                    crash.issued(operation)
            if at < len(self.log) and isinstance(self.log[at], Marked):
                continue  # the same disk, and more is promised of it
            for kept, files in crash.outcomes(limit, chance):
                key = (len(marks), frozenset(files.items()))
                if key not in seen:
                    seen.add(key)
                    yield CrashState(at, kept, tuple(marks), files)

    def crash_now(self, limit: int = 64, seed: int = 0) -> list[dict[str, bytes]]:
        """The files that a crash at this moment may leave, in every different way."""
        crash = _Crash(self._initial_names, self._initial_contents)
        for operation in self.log:
            crash.issued(operation)
        chance = random.Random(seed)  # noqa: S311
        found = {frozenset(files.items()) for _, files in crash.outcomes(limit, chance)}
        return [dict(items) for items in found]

    # Inside

    def _inode(self, name: str) -> int:
        try:
            return self._names[name]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name) from None

    def _used(self) -> int:
        return sum(len(self._contents[inode]) for inode in self._names.values())

    def _may_fail(self, operation: str) -> None:
        faults = self._faults.get(operation)
        if faults:
            after, code = faults.pop(0)
            if after == 0:
                raise OSError(code, os.strerror(code))
            faults.insert(0, (after - 1, code))

    def _write(self, inode: int, offset: int, data: bytes) -> None:
        fault: OSError | None = None
        try:
            self._may_fail("write")
        except OSError as told:
            fault = told
            data = data[: len(data) // 2]
        grows = offset + len(data) - len(self._contents[inode])
        if grows > self.free():
            fault = fault or OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[: max(0, len(data) - (grows - self.free()))]
        if data:
            self._record(Written(inode, offset, data))
        if fault is not None:
            raise fault

    def _record(self, operation: Operation) -> None:
        self.log.append(operation)
        match operation:
            case Created(_, inode):
                self._contents[inode] = bytearray()
                _apply_name(self._names, operation)
            case Written() | Truncated():
                _apply_data(self._contents[operation.inode], operation)
            case Renamed() | Unlinked():
                _apply_name(self._names, operation)
            case _:
                pass


class _Crash:
    """The durable part of a disk as a log is walked, and what is pending on top of it."""

    def __init__(self, names: dict[str, int], contents: dict[int, bytes]) -> None:
        self._names = dict(names)
        self._contents = dict(contents)
        self._pending: list[DataOperation | NameOperation] = []

    def issued(self, operation: Operation) -> None:
        """Take the next operation of the log."""
        match operation:
            case Synced(inode):
                self._settle(lambda op: isinstance(op, DataOperation) and op.inode == inode)
            case DirectorySynced():
                self._settle(lambda op: isinstance(op, NameOperation))
            case Marked():
                pass
            case _:
                self._pending.append(operation)

    def outcomes(self, limit: int, chance: random.Random) -> Iterator[tuple[str, dict[str, bytes]]]:
        """The files that a crash now may leave, each with words for what was kept."""
        for chosen in _subsets(len(self._pending), limit, chance):
            operations = [self._pending[at] for at in chosen]
            words = f"{list(chosen)} of {len(self._pending)}"
            yield words, self._files(operations)
            last = operations[-1] if operations else None
            if isinstance(last, Written):
                for how, data in _torn(last.data):
                    torn = Written(last.inode, last.offset, data)
                    yield f"{words}, the last {how}", self._files([*operations[:-1], torn])

    def _files(self, operations: Sequence[DataOperation | NameOperation]) -> dict[str, bytes]:
        names = dict(self._names)
        changed: dict[int, bytearray] = {}
        for operation in operations:
            if isinstance(operation, DataOperation):
                inode = operation.inode
                content = changed.get(inode)
                if content is None:
                    content = changed[inode] = bytearray(self._contents.get(inode, b""))
                _apply_data(content, operation)
            else:
                _apply_name(names, operation)
        return {
            name: bytes(changed[inode]) if inode in changed else self._contents.get(inode, b"")
            for name, inode in names.items()
        }

    def _settle(self, durable: Callable[[DataOperation | NameOperation], bool]) -> None:
        rest: list[DataOperation | NameOperation] = []
        for operation in self._pending:
            if not durable(operation):
                rest.append(operation)
            elif isinstance(operation, DataOperation):
                content = bytearray(self._contents.get(operation.inode, b""))
                _apply_data(content, operation)
                self._contents[operation.inode] = bytes(content)
            else:
                _apply_name(self._names, operation)
        self._pending = rest


def _apply_data(content: bytearray, operation: DataOperation) -> None:
    if isinstance(operation, Truncated):
        size = operation.size
        del content[size:]
        content.extend(bytes(size - len(content)))
        return
    if operation.offset > len(content):
        content.extend(bytes(operation.offset - len(content)))
    content[operation.offset : operation.offset + len(operation.data)] = operation.data


def _apply_name(names: dict[str, int], operation: NameOperation) -> None:
    match operation:
        case Created(name, inode):
            names[name] = inode
        case Renamed(old, new, inode):
            if names.get(old) == inode:
                del names[old]
            names[new] = inode
        case Unlinked(name):
            names.pop(name, None)


def _torn(data: bytes) -> Iterator[tuple[str, bytes]]:
    yield "as zeros", bytes(len(data))
    yield "half", data[: len(data) // 2]
    yield "without its end", data[:-1]
    yield "without its beginning", bytes(len(data) - len(data) // 2) + data[-(len(data) // 2) :]


def _subsets(count: int, limit: int, chance: random.Random) -> Iterator[tuple[int, ...]]:
    everything = tuple(range(count))
    if 2**count <= limit:
        for bits in range(2**count):
            yield tuple(at for at in everything if bits >> at & 1)
        return
    chosen = {everything[:end] for end in range(count + 1)}
    chosen |= {everything[:at] + everything[at + 1 :] for at in everything}
    chosen |= {(at,) for at in everything}
    while len(chosen) < limit:
        chosen.add(tuple(at for at in everything if chance.random() < 0.5))
    yield from sorted(chosen)
