"""A file system in memory with inodes, names and handles, and an agent that tails it."""

from __future__ import annotations

import errno
import fnmatch
import os
from dataclasses import dataclass, field

from cortextx.fleet.agent.sources.actions import Close, Emit, Gap, Keep, Open, Read, Say, Scan, Seen
from cortextx.fleet.agent.sources.identity import FileStat
from cortextx.fleet.agent.sources.rotation import TailSettings
from cortextx.fleet.agent.sources.tailer import Tailer

DEV = 7


@dataclass(eq=False)
class Inode:
    number: int
    data: bytearray = field(default_factory=bytearray)
    mtime: int = 0
    delivered: list[bytes] = field(default_factory=list)
    due: int = 0
    known: bool = False
    """Whole records that must be delivered before the next file's first."""

    @property
    def records(self) -> list[bytes]:
        return bytes(self.data).split(b"\n")[:-1]


class FakeFiles:
    """Names, inodes (the lowest free number is used again, as ext4 does) and a clock."""

    def __init__(self) -> None:
        self.names: dict[str, Inode] = {}
        self.held: dict[tuple[object, int], Inode] = {}
        self.clock = 0
        self.highest = 0
        self.made: list[Inode] = []
        self.changes = 1

    def create(self, path: str, data: bytes = b"", fresh: bool = False) -> Inode:
        """A new file; `fresh` in an inode that was never used, for a file that has the
        same bytes in the same inode as a dead one cannot be told from it."""
        used = {i.number for i in self.names.values()} | {i.number for i in self.held.values()}
        self.highest = max(used | {self.highest})
        number = next(n for n in range(1, 10_000) if n not in used)
        if fresh:
            number = self.highest = self.highest + 1
        inode = self.names[path] = Inode(number)
        self.made.append(inode)
        self.changes += 1
        self.write(inode, data)
        return inode

    def write(self, inode: Inode, data: bytes) -> None:
        self.clock += 1
        inode.data += data
        inode.mtime = self.clock

    def truncate(self, inode: Inode, size: int = 0) -> None:
        self.clock += 1
        del inode.data[size:]
        inode.mtime = self.clock

    def rename(self, old: str, new: str) -> None:
        self.names[new] = self.names.pop(old)
        self.changes += 1

    def replace(self, path: str, data: bytes) -> Inode:
        """Put a new file in the place of another in one step."""
        self.create(f"{path}.new", data, fresh=True)
        self.rename(f"{path}.new", path)
        return self.names[path]

    def unlink(self, path: str) -> None:
        del self.names[path]
        self.changes += 1

    def stat(self, inode: Inode) -> FileStat:
        links = sum(1 for other in self.names.values() if other is inode)
        return FileStat(DEV, inode.number, len(inode.data), inode.mtime, links)


class FakeAgent:
    """A Tailer and a buffer. Puts are durable at `settle`, in order, or lost in a crash."""

    def __init__(
        self,
        files: FakeFiles,
        kept: dict[str, bytes] | None = None,
        pattern: str = "/log/*.log",
        settings: TailSettings | None = None,
    ) -> None:
        self.files = files
        self.pattern = pattern
        self.now = 1000.0
        self.kept = dict(kept or {})
        self.tailer = Tailer(
            "s",
            settings or TailSettings(rotate_wait=5.0),
            self.kept,
            lambda home: fnmatch.fnmatch(home, self.pattern),
        )
        self.puts: list[tuple[Inode | None, Emit | Keep | Gap]] = []
        self.emitted: list[Emit] = []
        self.gaps: list[Gap] = []
        self.said: list[Say] = []
        self.opens = 0

    def look(self) -> None:
        """One scan, with everything that the tailer wants to know."""
        watch, names = self.tailer.watch(), self.files.names
        matched = {p for p in names if fnmatch.fnmatch(p, self.pattern)}
        listed = set(watch.directories)
        calm = {
            home: watch.calm.mark_of(home, self.files.stat(names[home]))
            for home in watch.calm
            if home in matched
        }
        awake = watch.calm.missed({mark for mark in calm.values() if mark is not None})
        for home in awake:
            if home not in matched or watch.calm.identity(home) != (DEV, names[home].number):
                listed.add(os.path.dirname(home))
        resting = {watch.calm.identity(home) for home in watch.calm if home not in awake}
        for home, (identity, path) in watch.homes.items():
            here = (DEV, names[home].number) if home in matched else None
            directory = os.path.dirname(path)
            calm = home in watch.vacant and watch.listed.get(directory) == self.files.changes
            if here != identity and not (here is None and calm):
                listed.add(directory)
        shown = matched | {p for p in names if os.path.dirname(p) in listed}
        shown |= {p for p in watch.strays if p in names}
        seen = [Seen(p, p, self.files.stat(names[p]), p in matched) for p in sorted(shown)]
        seen = [one for one in seen if one.stat.identity not in resting]
        met = {one.stat.identity for one in seen}
        handles = {}
        for handle, identity in watch.handles.items():
            if identity not in met:
                inode = self.files.held[(self, handle)]
                path = next((p for p, i in names.items() if i is inode), None)
                handles[handle] = (self.files.stat(inode), path)
        self.take(
            self.tailer.scanned(
                Scan(seen, handles, dict.fromkeys(listed, self.files.changes), awake), self.now
            )
        )

    def take(self, actions: list) -> None:
        for action in actions:
            match action:
                case Emit():
                    self.puts.append((self.files.held[(self, action.handle)], action))
                case Keep() | Gap():
                    self.puts.append((None, action))
                case Close(handle):
                    del self.files.held[(self, handle)]
                case Say():
                    self.said.append(action)

    def step(self) -> bool:
        """Do one piece of work; False if there is none."""
        tailer, files = self.tailer, self.files
        match tailer.next_action(self.now):
            case Open(handle, path, size):
                inode = files.names.get(path)
                if inode is None:
                    self.take(tailer.failed(handle, errno.ENOENT, self.now))
                else:
                    self.opens += 1
                    files.held[(self, handle)] = inode
                    head = bytes(inode.data[:size])
                    self.take(tailer.opened(handle, files.stat(inode), head, self.now))
            case Read(handle, offset, size):
                inode = files.held[(self, handle)]
                data = bytes(inode.data[offset : offset + size])
                self.take(tailer.bytes_read(handle, files.stat(inode), data, self.now))
            case Close(handle):
                del files.held[(self, handle)]
            case None:
                return False
        return True

    def settle(self) -> bool:
        """Make the oldest put durable; False if there is none."""
        if not self.puts:
            return False
        inode, action = self.puts.pop(0)
        for key, value in action.checkpoints.items():
            if value is None:
                self.kept.pop(key, None)
            else:
                self.kept[key] = value
        if isinstance(action, Gap):
            self.gaps.append(action)
            if action.handle is not None:
                self.take(self.tailer.put_durable(action.handle, self.now))
        if isinstance(action, Emit):
            self.emitted.append(action)
            if inode is not None:
                records = list(action.records)
                if action.part > 1:
                    inode.delivered[-1] += records.pop(0)
                inode.delivered.extend(records)
            self.take(self.tailer.put_durable(action.handle, self.now))
        return True

    def run(self, seconds: float = 0.0) -> None:
        """Look and work until there is nothing left, then again as time passes."""
        for _ in range(int(seconds) + 2):
            self.look()
            while self.step() or self.settle():
                pass
            self.now += 1.0

    def stop(self, crash: bool = False) -> FakeAgent:
        """End this agent (puts under way are lost in a crash), and start the next."""
        if not crash:
            while self.settle():
                pass
        for key in [key for key in self.files.held if key[0] is self]:
            del self.files.held[key]
        return FakeAgent(self.files, self.kept, self.pattern, self.tailer._settings)
