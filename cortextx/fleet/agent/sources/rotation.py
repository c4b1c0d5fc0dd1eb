"""Which file is which, from one scan to the next: rotation, renames, first sight (PURE).

A scan says what stands where. A file that no longer stands at its home is rotated; it
is followed by its identity, through its open handle or its new name. What now stands
at the home is read only when the bytes that the old file had at that time are durable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cortextx.fleet.agent.sources.actions import Action, Gap, Keep, Say, Scan, Seen, Watch
from cortextx.fleet.agent.sources.calm import Calm
from cortextx.fleet.agent.sources.codings import AUTO
from cortextx.fleet.agent.sources.compressed import Copy, copy_of, unread_in
from cortextx.fleet.agent.sources.identity import (
    Checkpoint,
    FileStat,
    decode_checkpoint,
    is_compressed,
    is_rotation_of,
)
from cortextx.fleet.agent.sources.multiline import Multiline
from cortextx.fleet.agent.sources.tail import Tail, is_whole, restored_tail, woken_tail

STEP = 4000
"""Files that one scan brings new, at most: the next one comes at once."""
KEPT_AT_ONCE = 256
"""Checkpoints of new files that go into one put."""


@dataclass(frozen=True, slots=True)
class TailSettings:
    """How files are followed. Times in seconds.

    `start` is `start` or `end`: where to begin in what is there at the very first scan
    (F41). A rotated file is watched until it was quiet for `rotate_wait`; what it gets
    later is still found for `forget_after`, as long as it keeps its directory.
    At most `max_files` are followed; those that are met first stay.
    `encoding` is one of `codings.ENCODINGS`. An unfinished last line stays in the file
    while that may grow; after a quiet `partial_after` (0: never) it comes as the first
    part of its line, and what is written behind it later as the next.
    """

    start: str = "start"
    rotate_wait: float = 30.0
    forget_after: float = 86_400.0
    max_finished: int = 1000
    max_open: int = 256
    read_bytes: int = 262_144
    max_records: int = 2000
    retry_after: float = 10.0
    partial_after: float = 60.0
    max_files: int = 50_000
    encoding: str = AUTO
    multiline: Multiline | None = None


class Files:
    """The tails of one source, by handle, by identity and by home."""

    def __init__(self, name: str, settings: TailSettings, wanted: Callable[[str], bool]) -> None:
        self.name = name
        self.settings = settings
        self._wanted = wanted
        self.tails: dict[int, Tail] = {}
        self._by_identity: dict[tuple[int, int], Tail] = {}
        self._homes: dict[str, list[Tail]] = {}
        self._next = 1
        self._listed: dict[str, int] = {}
        self._first = True
        self._looked = False
        self.calm = Calm()

    # -- what is kept ------------------------------------------------------------------

    def key(self, stat: FileStat) -> str:
        """A checkpoint's key; two files that exist at once never share it."""
        return f"file:{self.name}:{stat.dev}:{stat.ino}"

    def kept(self, tail: Tail, *, deleted: bool = False) -> dict[str, bytes | None]:
        """The checkpoint of a tail as it is now, or its deletion."""
        kept: dict[str, bytes | None] = {}
        if tail.stale_key is not None:
            kept[tail.stale_key] = None
        if not deleted:
            tail.kept = tail.checkpoint().encode()
        kept[self.key(tail.stat)] = None if deleted else tail.kept
        return kept

    @property
    def _started_key(self) -> str:
        return f"file:{self.name}:started"

    @property
    def _aside(self) -> str:
        return f"file:{self.name}:unreadable:"

    def restore(self, checkpoints: Mapping[str, bytes]) -> list[Action]:
        """Take up what the buffer kept for this source.

        What stands at a home that is not wanted any more is left alone, for the day that
        it is wanted again (A59). A checkpoint that cannot be read is put aside (A22).
        """
        actions: list[Action] = []
        kept: list[Checkpoint] = []
        unwanted: list[Checkpoint] = []
        homes: set[str] = set()
        prefix = f"file:{self.name}:"
        for key, value in checkpoints.items():
            if not key.startswith(prefix):
                continue
            self._first = False
            if key == self._started_key or key.startswith(self._aside):
                continue
            try:
                one = decode_checkpoint(value)
            except ValueError as error:
                aside = self._aside + key.removeprefix(prefix)
                text = f"{key}: {error}; kept as {aside}; that file is read from its start"
                actions += [Say("warn", text), Keep({aside: value, key: None})]
                continue
            if self.key(FileStat(one.dev, one.ino, 0, 0)) != key:
                continue
            if not self._wanted(one.home):
                unwanted.append(one)
            elif is_whole(one) and one.home not in homes and one.home not in self.calm:
                self.calm.add(one.home, FileStat(one.dev, one.ino, one.size, one.mtime_ns), value)
            else:
                kept.append(one)
                if one.home in self.calm:
                    kept.append(decode_checkpoint(self.calm.pop(one.home)[1]))
                homes.add(one.home)
        unwanted.sort(key=lambda one: one.mtime_ns)
        surplus = unwanted[: max(0, len(unwanted) - self.settings.max_finished)]
        if surplus:
            keys = [self.key(FileStat(one.dev, one.ino, 0, 0)) for one in surplus]
            actions.append(Keep(dict.fromkeys(keys)))
        for one in sorted(kept, key=lambda one: (one.finished == 0, one.mtime_ns)):
            tail = restored_tail(self._new_handle(), one)
            self._enter(tail)
            if one.replaces and tail.after is not None and tail.after.stat.ino == one.replaces:
                tail.replaces = tail.after
        return actions

    def _new_handle(self) -> int:
        self._next += 1
        return self._next - 1

    def _enter(self, tail: Tail) -> None:
        """Take in a tail as the newest of its home."""
        self.tails[tail.handle] = tail
        self._by_identity[tail.stat.identity] = tail
        chain = self._homes.setdefault(tail.home, [])
        tail.after = chain[-1] if chain else None
        chain.append(tail)

    def drop(self, tail: Tail, now: float) -> Keep | None:
        """Forget a tail and its checkpoint; nothing waits for it any more."""
        tail.finished = now
        del self.tails[tail.handle]
        if self._by_identity.get(tail.stat.identity) is tail:
            del self._by_identity[tail.stat.identity]
        chain = self._homes[tail.home]
        chain.remove(tail)
        if not chain:
            del self._homes[tail.home]
        return None if tail.durable is None else Keep(self.kept(tail, deleted=True))

    def comes_before(self, tail: Tail, now: float) -> Tail | None:
        """The file that must move before this one's first byte may be read, if any: all
        that comes before must be durable (A04)."""
        chain = [tail]
        while chain[-1].after is not None:
            chain.append(chain[-1].after)
        for younger, older in zip(chain[-2::-1], chain[:0:-1], strict=True):
            if younger.replaces is older:
                waits = older.busy or (older.is_open and (older.unread or older.held))
            else:
                waits = not older.passed(now)
            if waits:
                return older
            younger.after = None
        return None

    # -- scans -------------------------------------------------------------------------

    def watch(self) -> Watch:
        """What the next scan shall look at besides the globs."""
        tails = self.tails.values()
        lasts = {home: chain[-1] for home, chain in self._homes.items()}
        return Watch(
            homes={home: (last.stat.identity, last.path) for home, last in lasts.items()},
            vacant=frozenset(h for h, last in lasts.items() if last.finished is not None),
            strays=[t.path for t in tails if t.rotated is not None and not t.is_open],
            directories=frozenset(os.path.dirname(t.path) for t in tails if self._is_sought(t)),
            handles={t.handle: t.stat.identity for t in tails if t.is_open},
            listed=self._listed,
            calm=self.calm,
            room=max(0, self.settings.max_files - len(self.calm) - len(self._homes)),
            step=STEP,
        )

    def rest(self, tail: Tail) -> bool:
        """Keep of a tail no more than finds it again, if nothing is due of it."""
        if not tail.rests or tail.kept is None or len(self._homes[tail.home]) > 1:
            return False
        kept, mark = decode_checkpoint(tail.kept), tail.mark
        same = (kept.offset, kept.before_hash, kept.finished) == (mark.offset, mark.before_hash, 0)
        data = tail.kept if same and not kept.replaces else tail.checkpoint().encode()
        self.calm.add(tail.home, tail.stat, data)
        del self.tails[tail.handle], self._homes[tail.home]
        if self._by_identity.get(tail.stat.identity) is tail:
            del self._by_identity[tail.stat.identity]
        return True

    def _wake(self, homes: Iterable[str]) -> None:
        """Files that were calm are not where and as they were: take them up again."""
        for home in homes:
            stat, data = self.calm.pop(home)
            tail = woken_tail(self._new_handle(), decode_checkpoint(data), stat)
            tail.restored, tail.located, tail.kept = not self._looked, self._looked, data
            self._enter(tail)

    def _is_sought(self, tail: Tail) -> bool:
        """Whether a file may stand under a name that is not known: it was not found, or
        a restart found two checkpoints of one home."""
        return bool(tail.absent) or (
            tail.rotated is None and self._homes[tail.home][-1] is not tail
        )

    def scanned(self, scan: Scan, now: float) -> list[Action]:
        """Take in what a scan found."""
        self._wake(scan.awake)
        self._looked = True
        for tail in self.tails.values():
            if tail.finished == 0.0:
                tail.finished = tail.rotated = now
        found = self._by_place(scan.files)
        places = {
            home: (os.path.dirname(chain[-1].path), chain[-1].home_mtime_ns)
            for home, chain in self._homes.items()
        }
        self._follow_devices(found)
        actions: list[Action] = []
        for tail in list(self.tails.values()):
            seen = found.get(tail.stat.identity)
            if seen is not None and self._is_plausible(tail, seen):
                self._located(tail, seen, now)
            elif tail.handle in scan.handles:
                stat, path = scan.handles[tail.handle]
                tail.absent, tail.matched, tail.path = 0, False, path or tail.path
                tail.take_stat(stat, now)
                self._displaced(tail, now)
            elif not tail.is_open and not tail.busy:
                actions += self._missed(tail, scan, now)
        known = set(self.tails)
        to_end = self._first and self.settings.start == "end"
        fresh = [seen for identity, seen in found.items() if identity not in self._by_identity]
        if fresh:
            self._find_missed_rotations(fresh, places, found, scan, now)
        for seen in sorted(fresh, key=lambda seen: seen.path):
            if seen.matched and seen.stat.identity not in self._by_identity:
                tail = self._add(seen.path, seen, now)
                tail.to_end = to_end and seen.stat.size > 0
                tail.replaces = self._replaced_by(tail, found, scan, now)
        actions += self._first_sight([t for h, t in self.tails.items() if h not in known])
        if to_end and not scan.more:
            actions.append(Keep({self._started_key: b"1"}))
        self._first = self._first and scan.more
        self._note_listed(scan.listed)
        return actions + self._forget(now)

    def _note_listed(self, listed: Mapping[str, int]) -> None:
        """Remember when the directories of vacant homes were read whole."""
        homes = [chain[-1] for chain in self._homes.values()]
        vacant = {os.path.dirname(t.path) for t in homes if t.finished is not None}
        times = self._listed | dict(listed)
        self._listed = {place: times[place] for place in vacant if place in times}

    def _by_place(self, files: Iterable[Seen]) -> dict[tuple[int, int], Seen]:
        """One place an identity: its home before another match, a match before any other."""
        found: dict[tuple[int, int], Seen] = {}

        def rank(seen: Seen) -> int:
            tail = self._by_identity.get(seen.stat.identity)
            return 2 if tail is not None and tail.home == seen.path else int(seen.matched)

        for seen in files:
            if is_compressed(seen.path):
                continue
            other = found.get(seen.stat.identity)
            if other is None or rank(seen) > rank(other):
                found[seen.stat.identity] = seen
        return found

    def _add(self, home: str, seen: Seen, now: float) -> Tail:
        tail = Tail(self._new_handle(), home, seen.real, seen.stat, matched=seen.matched)
        tail.grown = now
        tail.largest = seen.stat.size
        tail.home_mtime_ns = seen.stat.mtime_ns
        self._enter(tail)
        return tail

    def _first_sight(self, fresh: Sequence[Tail]) -> list[Action]:
        """Keep a checkpoint of every new file at once: what is rotated away while the
        agent is down is found again only from a file that was known before."""
        fresh = [tail for tail in fresh if not tail.to_end]
        for tail in fresh:
            tail.durable = tail.mark
        return [
            Keep({key: value for tail in some for key, value in self.kept(tail).items()})
            for some in (fresh[at : at + KEPT_AT_ONCE] for at in range(0, len(fresh), KEPT_AT_ONCE))
        ]

    def _located(self, tail: Tail, seen: Seen, now: float) -> None:
        tail.absent, tail.matched, tail.path = 0, seen.matched, seen.real
        tail.located = True
        tail.take_stat(seen.stat, now)
        if tail.finished is not None and tail.unread:
            tail.finished = None
        if seen.path != tail.home:
            self._displaced(tail, now)
            return
        tail.home_mtime_ns = seen.stat.mtime_ns
        if tail.rotated is not None:
            tail.rotated = tail.finished = None
            chain = self._homes[tail.home]
            if chain[-1] is not tail:
                chain.remove(tail)
                for other in chain:
                    if other.after is tail:
                        other.after = tail.after
                tail.after = chain[-1]
                chain.append(tail)

    def _displaced(self, tail: Tail, now: float) -> None:
        """Note that a file no longer stands at its home."""
        if tail.rotated is None:
            tail.rotated = tail.grown = now
            tail.gate = tail.stat.size

    def _missed(self, tail: Tail, scan: Scan, now: float) -> list[Action]:
        """No path led to this file, and it is not open: look for it, then give it up."""
        if tail.absent and os.path.dirname(tail.path) in scan.listed:
            if any(other.replaces is tail for other in self._homes[tail.home]):
                return []
            copy = None if tail.finished is not None else copy_of(tail, scan.copies)
            return self.gone(tail, now) if copy is None else self._packed(tail, copy, now)
        tail.absent = 1
        return []

    def _replaced_by(
        self, tail: Tail, found: Mapping[tuple[int, int], Seen], scan: Scan, now: float
    ) -> Tail | None:
        """The file in whose place this one was put, if it may begin with what was read of
        that (A20): that one was not rotated, and now it is nowhere."""

        def is_nowhere(other: Tail) -> bool:
            if other.stat.identity in found:
                return False
            return other.handle not in scan.handles or other.stat.nlink == 0

        old, atomic = tail.after, False
        while old is not None and old.replaces is not None and is_nowhere(old):
            # It was put there and replaced itself before anything of it was read.
            old.finished, old, atomic = now, old.after, True
        if old is None or old.finished is not None or tail.stat.size < old.mark.offset:
            return None
        atomic = atomic or old.rotated in (None, now)
        return old if atomic and is_nowhere(old) else None

    def gone(self, tail: Tail, now: float) -> list[Action]:
        """This file cannot be found any more."""
        done = tail.finished is not None
        unread = tail.largest - tail.mark.offset
        keep = self.drop(tail, now)
        checkpoints = keep.checkpoints if keep is not None else {}
        if not done and unread > 0:
            text = f"{tail.home}: gone with {unread} known bytes unread"
            return [Gap(tail.home, unread, text, checkpoints, gone=True)]
        if not done and not tail.located:
            text = f"{tail.home}: gone since it was last read; what came after that is not known"
            return [Gap(tail.home, None, text, checkpoints, gone=True)]
        return [] if keep is None else [keep]

    def _packed(self, tail: Tail, copy: Copy, now: float) -> list[Action]:
        """This file was compressed while nobody looked; what its copy says is exact (A16)."""
        unread = unread_in(copy, tail)
        keep = self.drop(tail, now)
        checkpoints = keep.checkpoints if keep is not None else {}
        if unread:
            text = f"{tail.home}: compressed as {copy.path} with {unread} bytes unread"
            return [Gap(tail.home, unread, text, checkpoints, gone=True)]
        said = Say("info", f"{tail.home}: compressed as {copy.path}; all of it had been read")
        return [said] if keep is None else [said, keep]

    def _is_plausible(self, tail: Tail, seen: Seen) -> bool:
        """A file outside the globs of which nothing was read yet must at least be named
        as a rotation: its inode may have been given to another file."""
        return (
            seen.matched
            or tail.is_open
            or tail.mark.head_size > 0
            or is_rotation_of(seen.real, tail.home)
        )

    def _find_missed_rotations(
        self,
        fresh: Sequence[Seen],
        places: Mapping[str, tuple[str, int]],
        found: Mapping[tuple[int, int], Seen],
        scan: Scan,
        now: float,
    ) -> None:
        """Take in files that stood at a home and were rotated away between two looks at
        it: unknown, named as its rotations, and written since its last file was there."""
        standing = {seen.path: os.path.dirname(seen.real) for seen in fresh if seen.matched}
        for home, (directory, since) in places.items():
            last = self._homes[home][-1] if home in self._homes else None
            stands = last is not None and last.rotated is None and not last.absent
            if stands and home not in standing:
                continue
            directories = {directory, standing.get(home, directory)}
            between = [
                seen
                for seen in fresh
                if seen.stat.mtime_ns >= since
                and is_rotation_of(seen.real, home)
                and os.path.dirname(seen.real) in directories
                and seen.stat.identity not in self._by_identity
            ]
            for seen in sorted(between, key=lambda seen: seen.stat.mtime_ns):
                tail = self._add(home, seen, now)
                tail.replaces = self._replaced_by(tail, found, scan, now)
                self._displaced(tail, now)

    def _follow_devices(self, found: Mapping[tuple[int, int], Seen]) -> None:
        """Device numbers may change when a host starts anew: the same inode at the same
        path is then taken for the same file, until its bytes say otherwise."""
        for seen in found.values():
            if seen.stat.identity in self._by_identity:
                continue
            for tail in self._homes.get(seen.path, ()):
                if (
                    tail.restored
                    and not tail.is_open
                    and not tail.busy
                    and tail.mark.head_size
                    and tail.stat.ino == seen.stat.ino
                    and tail.stat.identity not in found
                ):
                    tail.stale_key = self.key(tail.stat)
                    del self._by_identity[tail.stat.identity]
                    tail.stat = tail.stat._replace(dev=seen.stat.dev)
                    self._by_identity[seen.stat.identity] = tail
                    break

    def _forget(self, now: float) -> list[Action]:
        """Drop what was rotated away and finished long ago, or is too much of that."""
        done = [t for t in self.tails.values() if t.finished is not None and not t.matched]
        done.sort(key=lambda t: t.finished or 0.0)
        surplus = len(done) - self.settings.max_finished
        actions: list[Action] = []
        for index, tail in enumerate(done):
            old = now - (tail.finished or 0.0) > self.settings.forget_after
            if (index < surplus or old) and not tail.busy and not tail.is_open:
                keep = self.drop(tail, now)
                if keep is not None:
                    actions.append(keep)
        return actions
