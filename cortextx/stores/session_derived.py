"""The files that are derived from a session's log, and how they are replaced (session-files).

Each is written beside, synced, and renamed; nothing reads a half of one. meta.json is
last: it says through which line the others are told, so that the next round goes on
from there, and starts anew where it does not fit. They are never read to run a session.
"""

from __future__ import annotations

import contextlib
import errno

import msgspec

from cortextx.interfaces.sessions import SessionKey
from cortextx.stores.journal_disk import LOG, JournalDirectory, JournalFile, remove, replace
from cortextx.stores.journal_log import Log
from cortextx.stores.journal_retention import PAGE_BYTES, PAGE_LINES
from cortextx.stores.session_story import Saved, Story

MESSAGES = "messages.jsonl"
LATEST = "latest.md"
META = "meta.json"
_BESIDE = f"{MESSAGES}.new"
COPY_BYTES = 2**20
_meta = msgspec.json.Decoder(Saved)


def derive(log: Log, directory: JournalDirectory, key: SessionKey) -> Saved | None:
    """Bring the derived files up to the log's head; None for a log without lines.

    OSErrors and the log's errors pass through; what was there stays then.
    """
    if not log.state.head:
        return None
    saved = _begun(log, directory, key)
    story = Story(saved)
    after = saved.through_seq
    messages = _Messages(directory, saved.messages_bytes)
    try:
        while (page := log.read(after, PAGE_LINES, PAGE_BYTES)).lines:
            for line in page.lines:
                story.tell(line)
            after = page.first + len(page.lines) - 1
            messages.add(story.messages)
        saved.messages_bytes = messages.put()
    finally:
        messages.close()
    saved.through_seq = story.through()
    return _finished(directory, story)


class _Messages:
    """messages.jsonl with more behind its first `kept` bytes, made beside it."""

    def __init__(self, directory: JournalDirectory, kept: int) -> None:
        self._directory = directory
        self._kept = kept
        self._end = kept
        self._file: JournalFile | None = None

    def add(self, lines: list[bytes]) -> None:
        """Take new lines away, and write them."""
        if lines or not self._kept:
            data = b"".join(line + b"\n" for line in lines)
            self._opened().write_at(self._end, [data])
            self._end += len(data)
            lines.clear()

    def put(self) -> int:
        """Put it in place, if there is anything new; its size."""
        if self._file is not None:
            self._file.sync()
            self._directory.rename(_BESIDE, MESSAGES)
            self.close()
        return self._end

    def close(self) -> None:
        """Close it, in place or not."""
        if self._file is not None:
            self._file.close()
            self._file = None
            with contextlib.suppress(OSError):
                remove(self._directory, _BESIDE)

    def _opened(self) -> JournalFile:
        if self._file is None:
            remove(self._directory, _BESIDE)
            self._file = self._directory.create(_BESIDE)
            if self._kept:
                _copy(self._directory, self._file, self._kept)
        return self._file


def derive_file(directory: JournalDirectory, key: SessionKey) -> Saved | None:
    """As `derive`, for a session that nobody has open; gives the directory back."""
    log = Log(lambda: directory, LOG)
    log.open()
    try:
        return derive(log, directory, key)
    finally:
        log.close()


def _begun(log: Log, directory: JournalDirectory, key: SessionKey) -> Saved:
    """Where the last round ended, or a new beginning."""
    fresh = Saved(agent=key.agent, scope=key.scope, session=key.session)
    try:
        saved = _meta.decode(_content(directory, META))
        size = _size(directory, MESSAGES)
    except (OSError, msgspec.DecodeError):
        return fresh
    names = (saved.agent, saved.scope, saved.session) == (key.agent, key.scope, key.session)
    told = log.state.first - 1 <= saved.through_seq <= log.state.head
    return saved if names and told and saved.messages_bytes == size else fresh


def _copy(directory: JournalDirectory, to: JournalFile, size: int) -> None:
    source = directory.open(MESSAGES)
    try:
        for at in range(0, size, COPY_BYTES):
            piece = source.read_at(at, min(COPY_BYTES, size - at))
            if not piece:
                raise OSError(errno.EIO, "messages.jsonl is shorter than it was")
            to.write_at(at, [piece])
    finally:
        source.close()


def _finished(directory: JournalDirectory, story: Story) -> Saved:
    saved = story.saved
    if story.latest is not None:
        replace(directory, LATEST, _text(story.latest))
    for name, text in (
        ("state", saved.state),
        ("cwd", saved.cwd),
        ("created_at", saved.created_at),
        ("updated_at", saved.updated_at),
    ):
        if text is not None and _differs(directory, name, _text(text)):
            replace(directory, name, _text(text))
    replace(directory, META, msgspec.json.format(msgspec.json.encode(saved), indent=2) + b"\n")
    directory.sync_directory()
    return saved


def _text(text: str) -> bytes:
    return text.encode() + b"\n"


def _differs(directory: JournalDirectory, name: str, data: bytes) -> bool:
    try:
        return _content(directory, name) != data
    except OSError:
        return True


def _content(directory: JournalDirectory, name: str) -> bytes:
    file = directory.open(name)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def _size(directory: JournalDirectory, name: str) -> int:
    file = directory.open(name)
    try:
        return file.size()
    finally:
        file.close()
