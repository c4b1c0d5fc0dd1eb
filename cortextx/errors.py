"""Every error that crosses a package boundary.

An error says what is wrong in words for the person who can mend it; nothing of
it goes on the wire except through the one map of a protocol (`fleet.contract`).
"""

from __future__ import annotations

from collections.abc import Sequence


class CortexError(Exception):
    """The base of all errors that this package raises on purpose."""


class ProtocolError(CortexError):
    """A rule of a wire contract was broken; `RemoteProtocolError` says by the peer."""


class LocalProtocolError(ProtocolError):
    """Our own side tried something that the contract forbids: a bug of ours."""


class RemoteProtocolError(ProtocolError):
    """The peer sent what the contract forbids."""


class FrameTooLong(RemoteProtocolError):
    """A line or frame exceeds its limit of `limit` bytes.

    `lines` are the complete lines that came before it in the same bytes, if any:
    they are good, and are to be handled before the fault.
    """

    def __init__(self, limit: int, lines: Sequence[bytes] = ()) -> None:
        super().__init__(f"a frame is longer than {limit} bytes")
        self.limit = limit
        self.lines = lines


class JsonError(RemoteProtocolError):
    """A text is not the JSON that was expected.

    `field` is the path of the value at fault as `$.entries[3].ts`, or `$`;
    `expected` says in words what should stand there. Neither repeats the value.
    """

    def __init__(self, field: str, expected: str) -> None:
        super().__init__(f"{field}: expected {expected}")
        self.field = field
        self.expected = expected


class JsonSyntaxError(JsonError):
    """The bytes are not UTF-8, not JSON, or nest too deep."""


class JsonShapeError(JsonError):
    """The JSON is well-formed, but its shape, type or range is not as declared."""


class StoreError(CortexError):
    """A store could not do what it was asked; nothing was stored in part."""


class StoreFull(StoreError):
    """The disk or a quota of the store is full; the same call may succeed later."""


class StoreClosed(StoreError):
    """The store is not open (any more)."""


class SessionLocked(StoreError):
    """Another slave, or another part of this one, owns the session (I14).

    `holder` says in words who it is, as far as is known.
    """

    def __init__(self, holder: str) -> None:
        super().__init__(f"the session is in use by {holder}")
        self.holder = holder


class SessionDamaged(StoreError):
    """A session's log cannot be proved from a place on, or not kept (I13).

    `path` is the log's path and `offset` the first byte in doubt. Nothing is read
    from or written to it until `cortextx session repair`, or, where a sync failed,
    until it is opened anew.
    """

    def __init__(self, path: str, offset: int, why: str = "it cannot be proved") -> None:
        super().__init__(f"{path}: byte {offset}: {why}")
        self.path = path
        self.offset = offset
        self.why = why


class SchemaTooNew(StoreError):
    """The database was written by a newer version than this one can read."""


class UnknownHost(StoreError):
    """No host with that id or name is registered."""


class UnknownEntry(StoreError):
    """No stored entry has that id (any more)."""


class UnknownName(StoreError):
    """Nothing has that name."""


class NameTaken(StoreError):
    """Something else has that name already."""


class NotConnected(CortexError):
    """The host has no live session, so it cannot be asked."""


class BadQuery(CortexError):
    """A search cannot be carried out as asked; `field` names the part at fault."""

    def __init__(self, field: str, expected: str) -> None:
        super().__init__(f"{field}: expected {expected}")
        self.field = field
        self.expected = expected


class ConfigError(CortexError):
    """A setting is wrong: `where` (file or variable), `field` and what was expected."""

    def __init__(self, where: str, field: str, expected: str) -> None:
        super().__init__(f"{where}: {field}: expected {expected}")
        self.where = where
        self.field = field
        self.expected = expected


class BufferDamaged(CortexError):
    """Part of a durable buffer cannot be read back; `first` to `last` are lost."""

    def __init__(self, message: str, first: int = 0, last: int = 0) -> None:
        super().__init__(message)
        self.first = first
        self.last = last


class SessionRefused(CortexError):
    """A slave, or the client for it, refuses what a master asked of a session.

    `code` is one of I7, or `closed` and `disconnected` of the client's own;
    `retryable` says that the same may succeed later.
    """

    def __init__(self, code: str, message: str, retryable: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.retryable = retryable


class SlaveUnavailable(CortexError):
    """There is no slave to talk to, or none that may be trusted with the user's words."""


def in_words(error: BaseException | None) -> str:
    """What an error says, for logs; its class where it says nothing, as a cancellation does.

    Where only its cause says something, the cause is told too.
    """
    if error is None:
        return "no error"
    said = str(error).strip()
    if said:
        return said
    name = type(error).__name__
    cause = error.__cause__ or error.__context__
    return name if cause is None else f"{name} ({in_words(cause)})"
