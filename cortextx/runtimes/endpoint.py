"""Asks a chat completions endpoint over HTTP, and hands on its answer as it comes.

A request is sent again, with growing pauses, only while nothing of its answer has
come. What a tool did is in the conversation by then, so that is never repeated.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from treq.client import HTTPClient
from twisted.internet.defer import Deferred, succeed
from twisted.internet.protocol import Protocol, connectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.web.client import Agent, HTTPConnectionPool, ResponseDone
from twisted.web.http_headers import Headers

from cortextx.core.backoff import FullJitter
from cortextx.errors import CortexError, RemoteProtocolError
from cortextx.runtimes.chat import Answer, AnswerReader, failure_words

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall

RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
REFUSAL_BYTES = 8192
"""Bytes of a refusal's body that are read."""
RETRY_BASE, RETRY_CAP = 0.5, 20.0
LONGEST_WAIT = 60.0
"""Seconds of Retry-After that are waited; a run does not wait for more."""
DRAIN_SECONDS = 2.0
"""How long a response may go on after its answer is complete; then it is cut off."""


class EndpointFault(CortexError):
    """No answer, or only part of one; the text says why, for people."""


class Endpoint:
    """One endpoint; `connect`, `first` and `idle` are time-outs in seconds.

    `first` is how long the response's head may take, `idle` each piece after it.
    """

    def __init__(
        self,
        reactor: Any,
        url: str,
        *,
        connect: float = 10.0,
        first: float = 120.0,
        idle: float = 60.0,
        retries: int = 3,
        max_answer_bytes: int = 1024 * 1024,
        client: HTTPClient | None = None,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.reactor = reactor
        self.url = url.rstrip("/") + "/chat/completions"
        self.first = first
        self.idle = idle
        self.retries = retries
        self.max_answer_bytes = max_answer_bytes
        self.random = random
        self._pool: HTTPConnectionPool | None = None
        if client is None:
            self._pool = HTTPConnectionPool(reactor)
            self._pool.retryAutomatically = False
            client = HTTPClient(Agent(reactor, connectTimeout=connect, pool=self._pool))
        self.client = client

    def ask(self, body: bytes, key: str | None, text_came: Callable[[str], None]) -> Asking:
        """Ask for one answer; `text_came` hears it piece by piece."""
        headers = {"content-type": "application/json", "accept": "text/event-stream"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        return Asking(self, body, headers, text_came)

    def close(self) -> Deferred[None]:
        """Close the connections that wait for a next request."""
        if self._pool is None:
            return succeed(None)
        closed: Deferred[None] = self._pool.closeCachedConnections()
        return closed


class Asking:
    """One question. `answer` fires with an Answer, or fails with an EndpointFault."""

    log = Logger()

    def __init__(
        self,
        endpoint: Endpoint,
        body: bytes,
        headers: Mapping[str, str],
        text_came: Callable[[str], None],
    ) -> None:
        self.answer: Deferred[Answer] = Deferred()
        self._endpoint = endpoint
        self._body = body
        self._headers = headers
        self._text_came = text_came
        self._backoff = FullJitter(random=endpoint.random, base=RETRY_BASE, cap=RETRY_CAP)
        self._reader = AnswerReader(endpoint.max_answer_bytes)
        self._request: Deferred[Any] | None = None
        self._stream: _Stream | None = None
        self._timer: IDelayedCall | None = None
        self._paused = False
        self._begin()

    @property
    def text(self) -> str:
        """The text so far."""
        return self._reader.text

    def end(self, why: str = "it was cancelled") -> None:
        """Ask no longer: `answer` fails at once."""
        if self.answer.called:
            return
        self._stop_timer()
        request, self._request = self._request, None
        stream, self._stream = self._stream, None
        self.answer.errback(EndpointFault(why))
        if request is not None:
            request.cancel()
        if stream is not None:
            stream.abort()

    def pause(self) -> None:
        """Read the answer no further; its time-out does not run meanwhile."""
        self._paused = True
        if self._stream is not None:
            self._stop_timer()
            self._stream.pause()

    def resume(self) -> None:
        """Read on."""
        self._paused = False
        if self._stream is not None:
            self._wait(self._endpoint.idle)
            self._stream.resume()

    # One attempt

    def _begin(self) -> None:
        self._timer = None
        self._reader = AnswerReader(self._endpoint.max_answer_bytes)
        self._wait(self._endpoint.first)
        request = self._endpoint.client.post(
            self._endpoint.url,
            data=self._body,
            headers=Headers({name: [text] for name, text in self._headers.items()}),
            allow_redirects=False,
            unbuffered=True,
        )
        self._request = request
        request.addCallbacks(self._head_came, self._not_reached)
        request.addErrback(self._failed)

    def _head_came(self, response: Any) -> None:
        if self._request is None:
            response.deliverBody(_Stream(None))
            return
        self._request = None
        refused = None if response.code == 200 else response
        self._stream = _Stream(self, refused)
        if not self._paused:
            self._wait(self._endpoint.idle)
        response.deliverBody(self._stream)
        # It may be over already, all within the call.
        if self._paused and self._stream is not None:
            self._stream.pause()

    def _not_reached(self, failure: Failure) -> None:
        if self._request is not None:
            self._request = None
            self._lost(f"it cannot be reached ({_words(failure)})")

    def _failed(self, failure: Failure) -> None:
        self.log.failure("asking a model", failure)
        self.end("internal")

    # From the stream

    def data_came(self, data: bytes) -> None:
        """Take a piece of a good response."""
        if self.answer.called:
            return
        if not self._paused:
            self._wait(self._endpoint.idle)
        try:
            for text in self._reader.feed(data):
                self._text_came(text)
                if self.answer.called:
                    return  # whoever heard the text ended this
        except RemoteProtocolError as fault:
            self._stopped()
            self._lost(str(fault))
            return
        if self._reader.ended:
            self._wait(DRAIN_SECONDS)

    def body_ended(self, failure: Failure | None) -> None:
        """The response is over: whole, or broken off."""
        if self._stream is None:
            return
        self._stream = None
        if failure is None or self._reader.ended:
            self._answered()
        else:
            self._lost(f"the connection was lost ({_words(failure)})")

    def refused(self, code: int, wait: float | None, body: bytes) -> None:
        """The response is a refusal, and over."""
        if self._stream is None:
            return
        self._stream = None
        words = failure_words(body)
        why = f"HTTP status {code}" + (f": {words}" if words else "")
        if code in RETRIED and (wait is None or wait <= LONGEST_WAIT):
            self._lost(why, wait)
        else:
            self._give_up(why)

    # The end of an attempt

    def _answered(self) -> None:
        self._stop_timer()
        self._stream = None
        try:
            answer = self._reader.finish()
        except RemoteProtocolError as fault:
            self._lost(str(fault))
            return
        self.answer.callback(answer)

    def _time_is_up(self) -> None:
        self._timer = None
        request, self._request = self._request, None
        self._stopped()
        if request is not None:
            request.cancel()
        if self._reader.ended:
            self._answered()
            return
        self._lost("it does not answer in time")

    def _stopped(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.abort()

    def _lost(self, why: str, wait: float | None = None) -> None:
        """Try again while nothing of the answer has come, and give up after that."""
        if self._reader.has_begun or self._backoff.attempt >= self._endpoint.retries:
            self._give_up(why)
            return
        self._stop_timer()
        delay = max(self._backoff.next_delay(), wait or 0.0)
        self.log.info("asking a model again in {delay:.1f} s: {why}", delay=delay, why=why)
        self._timer = self._endpoint.reactor.callLater(delay, self._begin)

    def _give_up(self, why: str) -> None:
        self._stop_timer()
        if not self.answer.called:
            self.answer.errback(EndpointFault(why))

    def _wait(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = self._endpoint.reactor.callLater(seconds, self._time_is_up)
        else:
            self._timer.reset(seconds)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _Stream(Protocol):
    """A response's body, for an Asking or for nobody."""

    transport: Any

    def __init__(self, asking: Asking | None, refused: Any = None) -> None:
        self._asking = asking
        self._refused = refused
        self._body = b""

    def connectionMade(self) -> None:
        if self._asking is None:
            self.transport.loseConnection()

    def dataReceived(self, data: bytes) -> None:
        if self._refused is not None:
            self._body += data[: REFUSAL_BYTES - len(self._body)]
        elif self._asking is not None:
            self._asking.data_came(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        asking, self._asking = self._asking, None
        if asking is None:
            return
        if self._refused is not None:
            asking.refused(self._refused.code, _retry_after(self._refused), self._body)
        else:
            asking.body_ended(None if reason.check(ResponseDone) else reason)

    def abort(self) -> None:
        """Close the connection under the response."""
        self._asking = None
        if self.transport is not None:
            self.transport.loseConnection()

    def pause(self) -> None:
        self.transport.pauseProducing()

    def resume(self) -> None:
        self.transport.resumeProducing()


def _retry_after(response: Any) -> float | None:
    """The seconds that a server asks to wait for; dates are not heeded."""
    [value] = response.headers.getRawHeaders("retry-after", [""])[:1]
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _words(failure: Failure) -> str:
    reasons = getattr(failure.value, "reasons", None)
    inner = reasons[0] if reasons else failure
    return type(inner.value).__name__
