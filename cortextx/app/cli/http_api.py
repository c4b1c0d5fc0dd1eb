"""Requests to the HTTP API of a server on another machine: its answers, errors and streams.

It blocks and needs no Twisted. No redirect is followed: a token goes to the one
server that was named.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from cortextx.app.cli.client import ANSWER_SECONDS, MAX_ANSWER_LINE, Row
from cortextx.app.cli.faults import Fault, NotReachable, Refused

STREAM_SECONDS = 60.0
"""A stream that is silent for so long is dead: the server says every 15 s that it is alive."""

Event = tuple[str | None, int | None, bytes]
"""Kind, id and data; one without data tells how far the stream has come."""


class Api:
    """One server's API; requests share a connection. `patience` is in seconds."""

    def __init__(
        self, host: str, port: int | None, prefix: str, context: ssl.SSLContext | None, token: str
    ) -> None:
        self._host = host
        self._port = port
        self._prefix = prefix
        self._context = context
        self._headers = {"Authorization": f"Bearer {token}", "User-Agent": "cortextx"}
        self._connection: http.client.HTTPConnection | None = None
        self.patience = ANSWER_SECONDS

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get(self, path: str, **params: Any) -> Row:
        """The object at a path below /api/v1."""
        return _read(self._ask("GET", path, params), self.went_away)

    def post(self, path: str, body: Any) -> Row:
        """What a request with a body answers."""
        return _read(self._ask("POST", path, body=body), self.went_away)

    def events(self, path: str, **params: Any) -> Iterator[Event]:
        """The server-sent events of a stream, until it breaks off."""
        answer = self._ask("GET", path, params, seconds=STREAM_SECONDS)
        return server_sent(answer, self.went_away)

    def _ask(
        self,
        method: str,
        path: str,
        params: Mapping[str, Any] | None = None,
        *,
        body: Any = None,
        seconds: float | None = None,
    ) -> http.client.HTTPResponse:
        """Send a request; answers its response, of a status below 300.

        A connection that was kept may have been closed meanwhile: a request
        without effects is sent once more then.
        """
        pairs = {name: value for name, value in (params or {}).items() if value is not None}
        target = f"{self._prefix}/api/v1{path}"
        if pairs:
            target += f"?{urlencode(pairs, doseq=True)}"
        headers, content = dict(self._headers), None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = msgspec.json.encode(body)
        again = method == "GET" and self._connection is not None
        try:
            answer = self._exchange(method, target, content, headers, seconds)
        except (http.client.HTTPException, OSError) as error:
            self.close()
            if not again:
                raise self._unreachable(error) from None
            try:
                answer = self._exchange(method, target, content, headers, seconds)
            except (http.client.HTTPException, OSError) as error:
                self.close()
                raise self._unreachable(error) from None
        if answer.status >= 300:
            raise refusal_of(answer)
        return answer

    def _exchange(
        self,
        method: str,
        target: str,
        content: bytes | None,
        headers: dict[str, str],
        seconds: float | None,
    ) -> http.client.HTTPResponse:
        seconds = self.patience if seconds is None else seconds
        connection = self._connection
        if connection is None:
            if self._context is None:
                connection = http.client.HTTPConnection(self._host, self._port, timeout=seconds)
            else:
                connection = http.client.HTTPSConnection(
                    self._host, self._port, timeout=seconds, context=self._context
                )
            self._connection = connection
            connection.timeout = ANSWER_SECONDS
            connection.connect()
        if connection.sock is not None:
            connection.sock.settimeout(seconds)
        connection.request(method, target, content, headers)
        return connection.getresponse()

    @property
    def _name(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return host if self._port is None else f"{host}:{self._port}"

    def went_away(self) -> NotReachable:
        """Hang up; what to raise where an answer broke off."""
        self.close()
        return NotReachable(f"the server at {self._name} went away while it answered")

    def _unreachable(self, error: Exception) -> Fault:
        match error:
            case ssl.SSLCertVerificationError():
                return Fault(
                    f"the certificate of {self._name} is not to be trusted: {error.verify_message}",
                    "give its CA with --ca-file (`server/tls/ca.pem` of the server), or use a name"
                    " that the certificate is for",
                )
            case TimeoutError():
                what = f"the server at {self._name} did not answer in time"
            case ConnectionRefusedError():
                what = f"no server listens at {self._name}"
            case OSError():
                what = f"the server at {self._name} cannot be reached: {error.strerror or error}"
            case _:
                what = f"{self._name} does not speak HTTP as a server of ours does"
        return NotReachable(what, "check the URL that --server names")


def _read(answer: http.client.HTTPResponse, gone: Callable[[], Fault]) -> Row:
    """An answer's body, a JSON object."""
    try:
        content = answer.read()
    except (http.client.HTTPException, OSError):
        raise gone() from None
    return json_object(content)


def json_object(content: bytes) -> Row:
    """A JSON object; raises Fault."""
    try:
        return msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise Fault(
            "the answer is not one of our server's API", "check the URL that --server names"
        ) from None


def refusal_of(answer: http.client.HTTPResponse) -> Fault:
    """What a status of 300 and above says, with the problem document if it has one (RFC 9457)."""
    try:
        said = msgspec.json.decode(answer.read(1_048_576), type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, http.client.HTTPException, OSError):
        said = {}
    code = str(said.get("code") or f"http_{answer.status}")
    message = str(said.get("detail") or said.get("title") or f"it answered {answer.status}")
    hint = said.get("hint")
    if answer.status == 401:
        hint = "the token is wrong, has ended or was revoked: `cortextx server token list` there"
    elif not said and answer.status in (502, 503, 504):
        code = "unavailable"
    return Refused(code, message, None if hint is None else str(hint))


def server_sent(answer: http.client.HTTPResponse, gone: Callable[[], Fault]) -> Iterator[Event]:
    """The events of a stream: kind, id, data; one without data tells how far it has come."""
    kind: str | None = None
    id: int | None = None
    data = b""
    while True:
        try:
            line = answer.readline(MAX_ANSWER_LINE)
        except (http.client.HTTPException, OSError, ValueError):
            raise gone() from None
        if not line.endswith(b"\n"):
            return
        name, _, text = line.rstrip(b"\r\n").partition(b": ")
        match name:
            case b"id" if text.isdigit():
                id = int(text)
            case b"event":
                kind = text.decode("ascii", "replace")
            case b"data":
                data += text
            case b"":
                if id is not None or data:
                    yield kind, id, data
                kind, id, data = None, None, b""
