"""A Unix socket that answers JSON lines: the admin socket and the agent's control socket.

A client sends one line `{"op": "agent.list", "args": {…}}` and reads lines
`{"row": {…}}` until `{"end": {…}}` or `{"error": {"code", "message", "hint"}}`;
then it may ask again on the same connection. Closing either half of the
connection abandons the request (F39).

An op is a coroutine function `async def op(args, rows) -> dict | None`: `args`
is the request's object (see `arguments`), `await rows(some)` sends rows and
waits while the client does not read, and what it returns is the end's object.
When the client goes away the coroutine is cancelled where it waits. An op says
no by raising `OpError`, or one of the package's errors, which `error_of` maps.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from twisted.application.service import Service
from twisted.internet import tcp, unix
from twisted.internet.defer import CancelledError, Deferred, DeferredList, maybeDeferred
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IPushProducer
from twisted.internet.protocol import Protocol, ServerFactory
from twisted.logger import Logger
from zope.interface import implementer

from cortextx.core.choices import one_of
from cortextx.core.framing import LineFramer
from cortextx.errors import (
    BadQuery,
    ConfigError,
    CortexError,
    FrameTooLong,
    NameTaken,
    StoreClosed,
    StoreError,
    StoreFull,
    UnknownEntry,
    UnknownHost,
    UnknownName,
)

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall
    from twisted.python.failure import Failure

Row = Mapping[str, Any] | msgspec.Raw
Rows = Callable[[Iterable[Row]], Awaitable[None]]
Op = Callable[[dict[str, Any], Rows], Awaitable[Mapping[str, Any] | None]]
T = TypeVar("T")

MAX_REQUEST_BYTES = 1_048_576
"""The longest request line, its newline included."""
MAX_SOCKET_PATH = 107
"""The longest path of a Unix socket, in bytes (Linux's sun_path without its NUL)."""
MAX_WAITING = 16
"""Requests that may wait behind the one that is being answered."""
IDLE_SECONDS = 60.0
"""How long a connection may stay without a complete request."""
STOP_SECONDS = 2.0
"""How long stopping waits for clients to take what was sent to them."""
WRITE_BYTES = 65_536
"""Rows are written in pieces of about this size, so that a reader is waited for in between."""


class OpError(CortexError):
    """An op refuses: `code` for programs, the message for people, `hint` what to do next."""

    def __init__(self, code: str, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint


def error_of(error: BaseException) -> dict[str, Any] | None:
    """The one map from errors to what a client is told; None for a fault of our own."""
    hint: str | None = None
    match error:
        case OpError():
            code, hint = error.code, error.hint
        case UnknownHost():
            code, hint = "not_found", "`cortextx agent list` shows the hosts"
        case UnknownName() | UnknownEntry():
            code = "not_found"
        case NameTaken():
            code, hint = "name_taken", "choose another name, or revoke what has this one"
        case BadQuery() | ConfigError():
            code = "bad_request"
        case StoreFull():
            code, hint = "store_full", "make room on the disk that holds the state directory"
        case StoreClosed():
            code, hint = "unavailable", "the process is starting or stopping; try again"
        case StoreError():
            code = "store_error"
        case _:
            return None
    return _error(code, str(error), hint)


def arguments(args: dict[str, Any], kind: type[T]) -> T:
    """An op's arguments as a msgspec struct; raises OpError `bad_request` with the field."""
    try:
        return msgspec.convert(args, kind)
    except msgspec.ValidationError as error:
        said = str(error)
        place = said.rpartition(" - at `")[2].removesuffix("`")
        allowed = one_of(kind, place) if said.startswith("Invalid enum value") else None
        said = said if allowed is None else f"{said}: expected {allowed}"
        raise OpError("bad_request", said) from None


def _error(code: str, message: str, hint: str | None = None) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "hint": hint}}


class Request(msgspec.Struct, frozen=True):
    """The request line."""

    op: str
    args: dict[str, Any] = {}


_INTERNAL = _error("internal", "the request failed inside the server; its log says why")
_encode_plain = msgspec.json.Encoder(decimal_format="number").encode


def _encode(message: Any) -> bytes:
    """JSON text; what is no Unicode, as some file names, is replaced."""
    try:
        return _encode_plain(message)
    except UnicodeEncodeError:
        return _encode_plain(_readable(message))


def _readable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, dict):
        return {_readable(name): _readable(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_readable(inner) for inner in value]
    return value


_decode = msgspec.json.Decoder(Request).decode


@implementer(IPushProducer)
class LineSocketProtocol(Protocol):
    """One client: requests in order, one at a time, rows as fast as they are read."""

    log = Logger()

    def __init__(self, service: LineSocketService) -> None:
        self.transport: Any = None
        self._service = service
        self._framer = LineFramer(service.max_request_bytes)
        self._waiting: deque[bytes] = deque()
        self._running: Deferred[Any] | None = None
        self._room: Deferred[None] | None = None
        self._paused = False
        self._closing = False
        self._idle: IDelayedCall | None = None
        self.gone: Deferred[None] = Deferred()

    def connectionMade(self) -> None:
        self._service.connections.add(self)
        self.transport.registerProducer(self, True)
        refusal = self._service.refusal(peer_uid(self.transport))
        if refusal is not None:
            self._close_with(refusal)
            return
        self._expect_request()

    def dataReceived(self, data: bytes) -> None:
        if self._closing:
            return
        try:
            lines = self._framer.feed(data)
        except FrameTooLong as error:
            self._close_with(_error("bad_request", str(error)))
            return
        self._waiting.extend(lines)
        if len(self._waiting) > MAX_WAITING:
            self._close_with(_error("bad_request", f"more than {MAX_WAITING} requests wait"))
            return
        self._next()

    def connectionLost(self, reason: Failure | None = None) -> None:
        self._closing = True
        self._waiting.clear()
        self._cancel_idle()
        self._service.connections.discard(self)
        if self._running is not None:
            self._running.cancel()
        room, self._room = self._room, None
        if room is not None:
            room.cancel()
        self.gone.callback(None)

    def close(self) -> None:
        """Abandon what runs, tell the client, and close."""
        running, self._running = self._running, None
        if running is not None:
            self._closing = True
            running.cancel()
            self._write(_error("unavailable", "the process is stopping"))
        self._closing = True
        self._lose()

    def pauseProducing(self) -> None:
        self._paused = True

    def resumeProducing(self) -> None:
        self._paused = False
        room, self._room = self._room, None
        if room is not None:
            room.callback(None)

    def stopProducing(self) -> None:
        self._paused = True

    def _next(self) -> None:
        while self._waiting and self._running is None and not self._closing:
            self._cancel_idle()
            line = self._waiting.popleft()
            running = Deferred.fromCoroutine(self._answer(line))
            if running.called:
                running.addErrback(self._failed)
                continue
            self._running = running
            running.addErrback(self._failed)
            running.addBoth(self._answered)
        if self._running is None and not self._closing:
            self._expect_request()

    async def _answer(self, line: bytes) -> None:
        try:
            request = _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            expected = 'expected one line {"op": "…", "args": {…}}'
            self._write(_error("bad_request", expected))
            return
        op = self._service.ops.get(request.op)
        if op is None:
            known = ", ".join(sorted(self._service.ops))
            self._write(_error("unknown_op", f"there is no such op; there are: {known}"))
            return
        try:
            end = await op(request.args, self._rows)
        except CancelledError:
            raise
        except Exception as error:
            answer = error_of(error)
            if answer is None:
                self.log.failure("{op} failed", op=request.op)
                answer = _INTERNAL
            self._write(answer)
        else:
            self._write({"end": end or {}})

    async def _rows(self, rows: Iterable[Row]) -> None:
        pieces: list[bytes] = []
        size = 0
        for row in rows:
            piece = _encode({"row": row})
            pieces.append(piece)
            size += len(piece)
            if size >= WRITE_BYTES:
                await self._write_rows(pieces)
                pieces, size = [], 0
        await self._write_rows(pieces)

    async def _write_rows(self, pieces: list[bytes]) -> None:
        if self._closing:
            raise CancelledError()
        if pieces:
            pieces.append(b"")
            self.transport.write(b"\n".join(pieces))
        if self._paused:
            self._room = Deferred()
            await self._room

    def _write(self, message: Mapping[str, Any]) -> None:
        self.transport.write(_encode(message) + b"\n")

    def _failed(self, failure: Failure) -> None:
        if failure.check(CancelledError) is None:
            self.log.failure("a request's answer failed", failure)
            self._closing = True
            self._lose()

    def _answered(self, _: object) -> None:
        if self._running is not None:
            self._running = None
            self._next()

    def _close_with(self, message: Mapping[str, Any]) -> None:
        self._closing = True
        self._cancel_idle()
        self._write(message)
        self._lose()

    def _lose(self) -> None:
        self._cancel_idle()
        self.transport.unregisterProducer()
        self.transport.loseConnection()

    def _expect_request(self) -> None:
        if self._idle is None:
            self._idle = self._service.reactor.callLater(IDLE_SECONDS, self._idled)

    def _idled(self) -> None:
        self._idle = None
        self._closing = True
        self._lose()

    def _cancel_idle(self) -> None:
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.cancel()


def peer_uid(transport: Any) -> int:
    """The user id at the other end of a Unix socket (SO_PEERCRED)."""
    size = struct.calcsize("3i")
    raw = transport.getHandle().getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return int(struct.unpack("3i", raw)[1])


class LineSocketService(Service):
    """Listens at `path` and answers `ops`; starting raises ConfigError if it cannot.

    The socket is 0600 from its first moment under `path`, in a directory that is
    made 0700 if it is missing; the peer must be our own user or root. A socket
    that nobody listens on is replaced, one that somebody does is left alone.
    """

    def __init__(
        self,
        reactor: Any,
        path: str,
        ops: Mapping[str, Op],
        *,
        max_connections: int = 64,
        max_request_bytes: int = MAX_REQUEST_BYTES,
    ) -> None:
        self.reactor = reactor
        self.path = path
        self.ops = dict(ops)
        self.max_connections = max_connections
        self.max_request_bytes = max_request_bytes
        self.connections: set[LineSocketProtocol] = set()
        self._port: PrivatePort | None = None

    def startService(self) -> None:
        prepare_place(self.path)
        factory = LineSocketFactory(self)
        port = PrivatePort(self.path, factory, reactor=self.reactor)
        try:
            port.startListening()
        except CannotListenError as error:
            expected = f"a place to listen ({error.socketError})"
            raise ConfigError(self.path, "the socket", expected) from None
        self._port = port
        super().startService()

    def stopService(self) -> Deferred[Any]:
        """Close the socket and the live connections; fires when all are gone."""
        super().stopService()
        waits: list[Deferred[Any]] = []
        port, self._port = self._port, None
        if port is not None:
            waits.append(maybeDeferred(port.stopListening))
        for connection in list(self.connections):
            waits.append(connection.gone)
            connection.close()
        abort = self.reactor.callLater(STOP_SECONDS, self._abort)
        done: Deferred[Any] = DeferredList(waits, consumeErrors=True)
        done.addCallback(lambda _: abort.active() and abort.cancel())
        return done

    def refusal(self, uid: int) -> Mapping[str, Any] | None:
        """Why a new connection of this user is turned away, or None."""
        if uid not in (0, os.geteuid()):
            return _error("forbidden", "this socket serves its own user and root only")
        if len(self.connections) > self.max_connections:
            return _error("busy", f"{self.max_connections} connections are open already")
        return None

    def _abort(self) -> None:
        for connection in list(self.connections):
            connection.transport.abortConnection()


class LineSocketFactory(ServerFactory):
    """Makes the service's connections."""

    noisy = False

    def __init__(self, service: LineSocketService) -> None:
        self._service = service

    def buildProtocol(self, addr: object) -> LineSocketProtocol:
        return LineSocketProtocol(self._service)


class PrivatePort(unix.Port):
    """A listening Unix socket that is 0600 from its first moment on.

    Linux takes a socket file's mode from the unbound socket, so there is no
    moment between bind and chmod in which another user may connect.
    """

    def __init__(self, path: str, factory: ServerFactory, reactor: Any) -> None:
        super().__init__(os.fsencode(path), factory, 50, 0o600, reactor)
        self._path = path

    def createInternetSocket(self) -> socket.socket:
        made: socket.socket = super().createInternetSocket()
        os.fchmod(made.fileno(), 0o600)
        return made

    def connectionLost(self, reason: Failure) -> None:
        if os.path.lexists(self._path):
            super().connectionLost(reason)
        else:
            # Somebody removed the state directory under us: there is nothing to unlink.
            tcp.Port.connectionLost(self, reason)


def prepare_place(path: str) -> None:
    """Make the directory of a socket and see that the name is free; raises ConfigError."""
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH:
        raise ConfigError(
            path,
            "the socket's path",
            f"at most {MAX_SOCKET_PATH} bytes, not {length}: choose a shorter state directory",
        )
    os.makedirs(os.path.dirname(path) or ".", mode=0o700, exist_ok=True)
    _refuse_live(path)


def _refuse_live(path: str) -> None:
    """Remove a dead process's socket; raise ConfigError if anything else is at `path`."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError(path, "the socket", "a free name, but a file of another kind is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError:
            # A full backlog (EAGAIN) or one we may not touch (EACCES): somebody is there.
            pass
    raise ConfigError(path, "the socket", "a free name, but another process answers there")
