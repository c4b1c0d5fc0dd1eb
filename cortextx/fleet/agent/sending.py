"""The sending side of one agent: which entries go when, and what their answers mean (PURE).

Go-back-N over `core.delivery.Outbox` (F33), the pace of the path (F36), the
search for poison (F25, F35) and the flush interval (§4.1). Entries are read
from the buffer just before they are sent, one read at a time; the window in
flight is the only place where they are held besides the buffer.

Times are seconds of the caller's clock. `Broken` says that the connection is
no good any more; the link then closes it and starts over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from math import inf
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from cortextx.core import jsontext
from cortextx.core.delivery import Outbox, Push
from cortextx.errors import CortexError, JsonError, RemoteProtocolError
from cortextx.fleet.agent.actions import Action, ReadBatch, Say, SetAside, Truncate
from cortextx.fleet.agent.actions import Send as SendFrame
from cortextx.fleet.agent.pace import MOST_BYTES, Pace
from cortextx.fleet.agent.poison import PoisonSearch
from cortextx.fleet.contract import DEFAULT_AGENT_CONFIG, MAX_ENTRIES, Code, PushResult

if TYPE_CHECKING:
    from cortextx.fleet.contract import AgentConfig
    from cortextx.fleet.jsonrpc import ErrorBody, Response

ANSWER_TIMEOUT = 30.0
"""Seconds without an answer to a push after which the path is given up (F36)."""
DEFAULT_WAIT = 1.0
"""Seconds to wait where a refusal names no `retry_after_ms`."""
LONGEST_WAIT = 300.0
"""The longest `retry_after_ms` that is believed, in seconds (A59)."""
BETWEEN_WORDS = 60.0
"""Seconds between two words to the operator about backpressure."""

_HEAD = b'{"jsonrpc":"2.0","id":%d,"method":"logs.push","params":{"seq_start":%d,"entries":['
_TAIL = b"]}}"
_WAITS = frozenset({Code.BACKPRESSURE, Code.QUOTA_EXCEEDED, Code.BUFFER_OVERFLOW})


class Broken(CortexError):
    """The connection must be closed; `full` asks for the longest backoff (F35)."""

    def __init__(self, why: str, full: bool) -> None:
        super().__init__(why)
        self.why = why
        self.full = full


class _RefusalData(msgspec.Struct, frozen=True):
    """What may stand in a refusal's data (F33); other members are not ours."""

    retry_after_ms: int | float | None = None
    resend_from: int | None = None


_push_result = jsontext.Decoder(PushResult)
_refusal = jsontext.Decoder(_RefusalData)


def encode_push(
    key: int, first: int, bodies: Sequence[bytes], most_bytes: int = MOST_BYTES
) -> tuple[bytes, int]:
    """Build the logs.push of as many bodies as fit, at least one; the frame and their number.

    The bodies are the buffer's: everything of an entry but its opening `{"seq":N,`.
    """
    entries: list[bytes] = []
    size = len(_HEAD) + 32 + len(_TAIL)
    for seq, body in enumerate(bodies, first):
        entry = b'{"seq":%d,' % seq + body
        size += len(entry) + 1
        if size > most_bytes and entries:
            break
        entries.append(entry)
    return _HEAD % (key, first) + b",".join(entries) + _TAIL, len(entries)


class Sender:
    """What is sent, what is unanswered, and what comes next, over all connections.

    `ids` gives the JSON-RPC ids; they never repeat, so an answer of an earlier
    connection is never taken for one of this.
    """

    def __init__(self, ids: Iterator[int], acked: int, last: int) -> None:
        self._ids = ids
        self._pace = Pace()
        self._poison = PoisonSearch()
        self._outbox = Outbox(acked, 1)
        self._last = last
        self._cursor = acked + 1
        self._open = False
        self._epoch = 0
        self._asked: deque[int] = deque()
        self._reading = False
        self._read_from = self._read_last = self._read_most = 0
        self._read_at = 0.0
        self._sent_at: dict[int, float] = {}
        self._answered_at = 0.0
        self._flush_at = inf
        self._wait_until = 0.0
        self._full = False
        self._hurried = False
        self._said_at = -inf
        self._config = DEFAULT_AGENT_CONFIG
        self._cap = MAX_ENTRIES

    @property
    def acked(self) -> int:
        """The highest seq that is durable on the server, as far as is known."""
        return self._outbox.acked

    @property
    def last(self) -> int:
        """The highest seq in the buffer, as far as is known."""
        return self._last

    @property
    def in_flight(self) -> int:
        """The pushes that wait for an answer."""
        return len(self._sent_at)

    @property
    def drained(self) -> bool:
        """Whether everything that the buffer holds has been sent and answered."""
        return not self._sent_at and not self._waiting and not self._outbox.settling

    @property
    def deadline(self) -> float:
        """When `time_passed` must be called next; infinity if not at all."""
        if not self._open:
            return inf
        due = self._answer_due()
        if self._can_read() and self._waiting:
            ready = max(self._wait_until, 0.0 if self._is_batch() else self._flush_at)
            due = min(due, ready)
        return due

    def configure(self, config: AgentConfig) -> None:
        """Take the server's batch size and flush interval (§4.1, F31)."""
        self._config = config

    def begin(self, acked: int, last: int, renumbered: bool, now: float) -> list[Action]:
        """Start on a connection whose server has all up to `acked` (§7)."""
        if renumbered:
            self._poison.clear()
        self._poison.passed(acked)
        self._pace.connected()
        self._outbox = Outbox(acked, 1)
        self._last = last
        self._cursor = acked + 1
        self._cap = MAX_ENTRIES
        self._open = True
        self._wait_until = self._answered_at = now
        self._flush_at = now if self._waiting else inf
        self._full = self._hurried = False
        return self._pump(now)

    def end(self) -> None:
        """The connection is gone: what was in flight is owed again."""
        self._open = False
        self._epoch += 1
        self._reading = False
        self._sent_at.clear()

    def hurry(self, now: float) -> list[Action]:
        """Send what there is without waiting for a full batch: the link drains."""
        self._hurried = True
        return self._pump(now)

    def transport_full(self) -> None:
        """The transport takes nothing more for now."""
        self._full = True

    def transport_ready(self, now: float) -> list[Action]:
        """The transport takes data again."""
        self._full = False
        return self._pump(now)

    def entries_available(self, last: int, now: float) -> list[Action]:
        """All up to `last` is durable in the buffer."""
        if last <= self._last:
            return []
        self._last = last
        self._flush_at = min(self._flush_at, now + self._interval)
        return self._pump(now)

    def batch_read(self, first: int, bodies: Sequence[bytes], now: float) -> list[Action]:
        """The buffer's answer to the oldest ReadBatch; `bodies` start at seq `first`."""
        if not self._is_current_read():
            return []
        if self._outbox.next_first != self._read_from or not self._may_send(now):
            return self._pump(now)
        if not bodies:
            # Nothing is left of what was asked for: set aside, or evicted.
            self._cursor = self._read_last + 1
            return self._pump(now)
        key = next(self._ids)
        payload, count = encode_push(key, first, bodies)
        end = first + count - 1
        self._outbox.sent(key, first, end, len(payload))
        self._cursor = end + 1
        # The buffer may know of more than has been announced here.
        self._last = max(self._last, end)
        self._sent_at[key] = now
        self._plan_flush(end, count, now)
        return [SendFrame(payload), *self._pump(now)]

    def read_failed(self, why: str) -> None:
        """The buffer could not answer the oldest ReadBatch; raises Broken."""
        if self._is_current_read():
            raise Broken(f"the buffer cannot be read: {why}", full=True)

    def awaits(self, key: object) -> bool:
        """Whether `key` is the id of a push that is unanswered."""
        return key in self._sent_at

    def answered(self, response: Response, now: float) -> list[Action]:
        """The server answered a push; raises Broken for answers that end the connection."""
        key = int(response.id or 0)
        seconds = now - self._sent_at.pop(key)
        self._answered_at = now
        if response.error is not None:
            actions = self._refused(key, response.error, now)
        else:
            actions = self._acked(key, response.result, seconds, now)
        if not self._outbox.settling:
            self._cursor = max(self._outbox.next_first, self._cursor)
        return actions + self._pump(now)

    def time_passed(self, now: float) -> list[Action]:
        """Raises Broken when an answer is overdue (F36)."""
        if not self._open:
            return []
        if now >= self._answer_due():
            self._pace.timed_out()
            raise Broken(f"no answer to a push for {ANSWER_TIMEOUT:.0f} s", full=False)
        return self._pump(now)

    def _acked(self, key: int, result: Raw | None, seconds: float, now: float) -> list[Action]:
        before = self._outbox.acked
        try:
            answer = _push_result.decode(result or Raw(b"null"))
            acked = self._outbox.acknowledged(key, answer.up_to_seq, self._last)
        except (JsonError, RemoteProtocolError) as error:
            raise Broken(f"the answer to a push is wrong: {error}", full=True) from None
        self._pace.answered(seconds)
        self._poison.passed(acked)
        if self._outbox.next_first < self._cursor and not self._sent_at:
            # The ack stopped short of its push: the rest is owed again, but not in a loop.
            self._start_over(now)
            self._wait_until = now + DEFAULT_WAIT
        return [Truncate(acked)] if acked > before else []

    def _refused(self, key: int, error: ErrorBody, now: float) -> list[Action]:
        data = _refusal_data(error)
        if error.code in _WAITS:
            self._outbox.refused(key, data.resend_from)
            self._wait_until = max(self._wait_until, now + _seconds(data.retry_after_ms))
            actions = self._say_waiting(error.code, now)
        elif error.code in (Code.INVALID_PARAMS, Code.PAYLOAD_TOO_LARGE):
            actions = self._suspect(self._outbox.refused(key, data.resend_from), error.code)
        else:
            raise Broken(f"the server refuses pushes: {_named(error.code)}", full=True)
        if not self._outbox.settling:
            self._start_over(now)
        for action in actions:
            if isinstance(action, SetAside):
                self._cursor = action.seq + 1
        return actions

    def _suspect(self, push: Push, code: int) -> list[Action]:
        if code == Code.PAYLOAD_TOO_LARGE and push.last > push.first:
            self._cap = max(1, (push.last - push.first + 1) // 2)
            return []
        poison = self._poison.refused(push.first, push.last)
        if poison is None:
            return []
        text = f"entry {poison} was refused alone again and again ({_named(code)}): set aside"
        return [SetAside(poison, _named(code)), Say("warn", text)]

    def _start_over(self, now: float) -> None:
        self._cursor = self._outbox.next_first
        self._flush_at = now

    def _say_waiting(self, code: int, now: float) -> list[Action]:
        if now < self._said_at + BETWEEN_WORDS:
            return []
        self._said_at = now
        return [Say("info", f"the server asks to wait: {_named(code)}")]

    @property
    def _waiting(self) -> int:
        return max(0, self._last - max(self._cursor, self._outbox.next_first) + 1)

    @property
    def _interval(self) -> float:
        return self._config.flush_interval_ms / 1000

    def _most(self) -> int:
        most = min(self._config.max_batch_entries, self._cap)
        return self._poison.limit(self._outbox.next_first, most)

    def _is_batch(self) -> bool:
        """Whether what waits need not wait for more."""
        return self._hurried or self._poison.searching or self._waiting >= self._most()

    def _can_read(self) -> bool:
        self._outbox.window = 1 if self._poison.searching else self._pace.window
        return self._open and not (self._reading or self._full) and self._outbox.may_send()

    def _may_send(self, now: float) -> bool:
        return self._can_read() and now >= self._wait_until

    def _pump(self, now: float) -> list[Action]:
        """Ask the buffer for the next push, if one may go now."""
        if not self._may_send(now) or not self._waiting:
            return []
        if not self._is_batch() and now < self._flush_at:
            return []
        self._reading = True
        self._asked.append(self._epoch)
        self._read_from = self._outbox.next_first
        self._read_last, self._read_at, self._read_most = self._last, now, self._most()
        first = max(self._cursor, self._read_from)
        # The numbers come on top of the bodies, an eighth or so.
        return [ReadBatch(first, self._read_most, self._pace.push_bytes * 7 // 8)]

    def _is_current_read(self) -> bool:
        if self._asked.popleft() != self._epoch or not self._open:
            return False
        self._reading = False
        return True

    def _plan_flush(self, end: int, count: int, now: float) -> None:
        """When what is left after a push must go at the latest (§4.1, flush_interval_ms)."""
        if end >= self._last:
            self._flush_at = inf
        elif end >= self._read_last:
            self._flush_at = self._read_at + self._interval
        elif count < self._read_most:
            # The push was full by bytes, so what was left behind need not wait.
            self._flush_at = now

    def _answer_due(self) -> float:
        if not self._sent_at:
            return inf
        oldest = next(iter(self._sent_at.values()))
        return max(oldest, self._answered_at) + ANSWER_TIMEOUT


def _refusal_data(error: ErrorBody) -> _RefusalData:
    if not len(error.data):
        return _RefusalData()
    try:
        return _refusal.decode(error.data)
    except JsonError:
        return _RefusalData()


def refusal_wait(error: ErrorBody) -> float:
    """The seconds that a refusal asks to wait; 0 if it asks for none (A52)."""
    asked = _refusal_data(error).retry_after_ms
    return 0.0 if asked is None else _seconds(asked)


def _seconds(retry_after_ms: float | None) -> float:
    if retry_after_ms is None or not retry_after_ms >= 0:
        return DEFAULT_WAIT
    return min(retry_after_ms / 1000, LONGEST_WAIT)


def _named(code: int) -> str:
    """A code for people, as `InvalidParams (-32602)`."""
    try:
        return f"{Code(code).title} ({code})"
    except ValueError:
        return f"error {code}"
