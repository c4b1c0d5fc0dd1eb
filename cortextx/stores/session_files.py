"""Sessions' files for a person: list, show, verify, repair, rename, delete, fork, export.

For the command line, beside a slave that may run: all calls block, nothing needs
Twisted. What changes a session takes its lock and so fails with SessionLocked while a
slave has it open (a slave unloads a session that is idle for a while). What only
reads does not: of a session in use it sees what is whole at that moment.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
from msgspec import Raw

from cortextx.errors import NameTaken, SessionDamaged, UnknownName
from cortextx.interfaces.sessions import SessionKey
from cortextx.stores.journal_disk import LOG
from cortextx.stores.journal_proof import Proved, prove
from cortextx.stores.journal_repair import Repaired, Verdict, repair, verify
from cortextx.stores.session_derived import META, derive_file
from cortextx.stores.session_directory import RealFile, SessionDirectory
from cortextx.stores.session_index import removed, updated
from cortextx.stores.session_lock import SessionLock, make_directories, sync_directory
from cortextx.stores.session_paths import SessionRoot
from cortextx.stores.session_story import Saved, Story

Form = Literal["events", "messages", "markdown"]
PIECE = 2**20
_members = msgspec.json.Decoder(dict[str, Raw])
_meta = msgspec.json.Decoder(Saved)


@dataclass(frozen=True, slots=True)
class Summary:
    """One session in a list. `told` is from its derived files and may lag a little.

    `size` is the log's, in bytes; `in_use` says that a slave has it open now.
    """

    key: SessionKey
    told: Saved
    size: int
    in_use: bool


@dataclass(frozen=True, slots=True)
class Details:
    """One session looked at closely: its log read whole, `latest` its newest answer."""

    summary: Summary
    path: str
    verdict: Verdict
    latest: str | None


class SessionFiles:
    """The sessions below one state root. Errors: StoreError and its kinds, OSError."""

    def __init__(self, root: str) -> None:
        self.root = SessionRoot.at(root)

    def find(
        self, *, agent: str | None = None, owner: int | None = None, session: str | None = None
    ) -> list[SessionKey]:
        """The sessions that match, by path."""
        return sorted(
            (
                key
                for key in self.root.sessions()
                if agent in (None, key.agent)
                and owner in (None, key.owner)
                and session in (None, key.session)
            ),
            key=self.root.directory,
        )

    def list(self, *, agent: str | None = None, owner: int | None = None) -> list[Summary]:
        """All sessions, newest `updated_at` first; no log is read."""
        found = [self.summary(key) for key in self.find(agent=agent, owner=owner)]
        return sorted(found, key=lambda each: each.told.updated_at, reverse=True)

    def summary(self, key: SessionKey) -> Summary:
        """One of a list; raises UnknownName."""
        path = self._path(key)
        try:
            with open(os.path.join(path, META), "rb") as file:
                told = _meta.decode(file.read())
        except (OSError, msgspec.DecodeError):
            told = Saved(agent=key.agent, scope=key.scope, session=key.session)
        size = os.stat(os.path.join(path, LOG)).st_size
        return Summary(key, told, size, self._in_use(key))

    def show(self, key: SessionKey) -> Details:
        """Everything about one session, from its log."""
        summary = self.summary(key)
        with self._log(key) as file:
            proved = prove(file, file.size())
            story = Story(Saved(agent=key.agent, scope=key.scope, session=key.session))
            for line in _lines(file, proved.end):
                story.tell(line)
                story.messages.clear()
            why = None if proved.doubt is None else proved.doubt.why
            verdict = Verdict(proved.first, proved.head, proved.end, file.size(), why)
        summary = replace(summary, told=story.saved)
        return Details(summary, self._path(key), verdict, story.latest)

    def verify(self, key: SessionKey) -> Verdict:
        """Prove the log (I13). Of a session in use, an append may be half there."""
        with self._log(key) as file:
            return verify(file)

    def repair(self, key: SessionKey, stamp: str) -> Repaired:
        """Move what cannot be proved aside, into `events.jsonl.damaged-STAMP` (I13)."""
        path = self._path(key)
        with closing(SessionDirectory(self.root, key)) as directory:
            done = repair(directory, stamp, os.path.join(path, LOG))
            if directory.unfinished() is not None:
                directory.written()
            if done.aside is not None:
                derive_file(directory, key)
            return done

    def rename(self, key: SessionKey, session: str) -> SessionKey:
        """Give a session another name; raises NameTaken."""
        to = replace(key, session=session)
        path, target = self._path(key), self.root.checked_directory(to)
        with self._locked(key, forget=True), self._locked(to):
            _check_free(target, session)
            os.rename(path, target)
            sync_directory(os.path.dirname(target))
        removed(self.root.index(key), key.session)
        self._derive(to)
        return to

    def delete(self, key: SessionKey) -> None:
        """Remove a session and all of its files, for good."""
        path = self._path(key)
        gone = os.path.join(os.path.dirname(path), f"{key.session}~deleted")
        with self._locked(key, forget=True):
            shutil.rmtree(gone, ignore_errors=True)
            os.rename(path, gone)  # a name that no session can have: gone at once
            sync_directory(os.path.dirname(path))
            shutil.rmtree(gone)
        removed(self.root.index(key), key.session)

    def fork(self, key: SessionKey, session: str, through: int | None = None) -> SessionKey:
        """Copy a session's log, up to seq `through` if given, to one of another name.

        The session may be in use; a run that is under way there ends as interrupted
        in the copy. Raises NameTaken, SessionDamaged, or UnknownName for a seq that is
        not retained.
        """
        to = replace(key, session=session)
        target = self.root.checked_directory(to)
        with self._log(key) as file, self._locked(to):
            _check_free(target, session)
            end = self._end(key, file, through)
            beside = os.path.join(os.path.dirname(target), f"{session}~forked")
            shutil.rmtree(beside, ignore_errors=True)
            make_directories(beside)
            _copy(file, end, os.path.join(beside, LOG))
            sync_directory(beside)
            os.rename(beside, target)
            sync_directory(os.path.dirname(target))
        self._derive(to)
        return to

    def export(self, key: SessionKey, form: Form = "events") -> Iterator[bytes]:
        """The session as lines with newlines: its events as masters see them, the
        messages as in messages.jsonl, or a transcript to read."""
        with self._log(key) as file:
            end = self._end(key, file, None)
            story = Story()
            for line in _lines(file, end):
                if form == "events":
                    yield _published(line) + b"\n"
                    continue
                story.tell(line)
                for message in story.messages:
                    yield message + b"\n" if form == "messages" else _transcribed(message)
                story.messages.clear()

    # Inside

    def _path(self, key: SessionKey) -> str:
        path = self.root.checked_directory(key)
        if not os.path.isfile(os.path.join(path, LOG)):
            raise UnknownName(f"there is no session {key.session} of agent {key.agent}")
        return path

    @contextmanager
    def _log(self, key: SessionKey) -> Iterator[RealFile]:
        path = os.path.join(self._path(key), LOG)
        file = RealFile(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
        with closing(file):
            yield file

    @contextmanager
    def _locked(self, key: SessionKey, forget: bool = False) -> Iterator[None]:
        lock = SessionLock(self.root.lock(key))
        lock.take()
        try:
            yield
        except BaseException:
            lock.release()
            raise
        lock.release(forget)

    def _in_use(self, key: SessionKey) -> bool:
        return SessionLock(self.root.lock(key)).is_held()

    def _end(self, key: SessionKey, file: RealFile, through: int | None) -> int:
        proved: Proved = prove(file, file.size())
        if proved.doubt is not None and not self._in_use(key):
            path = os.path.join(self._path(key), LOG)
            raise SessionDamaged(path, proved.doubt.offset, proved.doubt.why)
        if through is None:
            return proved.end
        if not proved.first <= through <= proved.head:
            raise UnknownName(f"session {key.session} retains no seq {through}")
        seq, at = proved.offsets.before(through)
        for line in _lines(file, proved.end, at):
            at += len(line) + 1
            if seq == through:
                break
            seq += 1
        return at

    def _derive(self, key: SessionKey) -> None:
        with closing(SessionDirectory(self.root, key)) as directory:
            told = derive_file(directory, key)
        if told is not None:
            updated(self.root.index(key), key.session, told.cwd)


def _check_free(target: str, session: str) -> None:
    if os.path.lexists(target):
        raise NameTaken(f"there is a session {session} already")


def _lines(file: RealFile, end: int, at: int = 0) -> Iterator[bytes]:
    held = b""
    while at < end:
        piece = file.read_at(at, min(PIECE, end - at))
        if not piece:
            return
        at += len(piece)
        *lines, held = (held + piece).split(b"\n")
        yield from lines


def _copy(file: RealFile, end: int, path: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with closing(RealFile(os.open(path, flags, 0o600))) as copy:
        for at in range(0, end, PIECE):
            copy.write_at(at, [file.read_at(at, min(PIECE, end - at))])
        copy.sync()


def _published(line: bytes) -> bytes:
    """The line without what masters must not see (I36)."""
    members = _members.decode(line)
    if members.pop("x", None) is None:
        return line
    return msgspec.json.encode(members)


def _transcribed(message: bytes) -> bytes:
    known = msgspec.json.decode(message, type=dict[str, str])
    return f"**{known['role']}**\n\n{known['content']}\n\n".encode()
