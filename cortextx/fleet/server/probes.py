"""Probes that one session is asked to run on its host (PURE; §4.6, §4.7, F27, F44).

At most as many requests are out as the host's `probe_concurrency`; what is beyond
waits here, within its own time-out. Answers are matched by id and by nothing
else. A request that is not answered in time is given up: its slot is free again,
and a late answer is dropped. Nothing is sent twice, and nothing outlives the
connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta, Raw

from cortextx.core.jsontext import Decoder, check_value, encode
from cortextx.errors import JsonError
from cortextx.fleet import contract, jsonrpc
from cortextx.fleet.contract import Code, Natural, ProbeParams, Strict
from cortextx.fleet.server.pushes import without_nul

MAX_QUEUED = 64
"""Probes of one host that may wait for a slot."""
GRACE = 2.0
"""Seconds that an answer may take on its way, beyond the probe's own time-out."""
MAX_ARGS_BYTES = 65_536
MAX_DATA_BYTES = 65_536
"""Encoded bytes of an agent's error data that are kept."""


@dataclass(frozen=True, slots=True)
class ProbeCall:
    """What is asked: `args` is the JSON text of any value, `timeout_ms` the probe's budget."""

    probe: str
    args: bytes
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The probe ran. `output` is JSON text (§4.4 ProbeOutput)."""

    output: bytes = field(repr=False)
    duration_ms: int
    exit_code: int | None = None
    stderr: str | None = None


@dataclass(frozen=True, slots=True)
class ProbeFailure:
    """It did not, or nobody knows. `code` is JSON-RPC's, None where no answer tells one.

    `by_agent` says who found the fault; `data` is JSON text or None.
    """

    code: int | None
    reason: str
    data: bytes | None = field(default=None, repr=False)
    by_agent: bool = False


ProbeOutcome = ProbeAnswer | ProbeFailure
Done = tuple[int, ProbeOutcome]
"""A call's key and what became of it."""
Todo = tuple[list[bytes], list[Done]]
"""Messages to send, and calls that are over."""

LOST = ProbeFailure(None, "the connection was lost before an answer came")
CLOSING = ProbeFailure(None, "the session is ending")
BUSY = ProbeFailure(None, f"{MAX_QUEUED} probes wait for this host already")


_Storable = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]


def storable(number: int) -> bool:
    """Whether a record can hold this integer (F31)."""
    return -(2**63) <= number < 2**63


class _Output(Strict, frozen=True):
    """`contract.ProbeOutput` with the output as the agent's own text."""

    output: Raw
    duration_ms: Natural
    exit_code: _Storable | None = None
    stderr: str | None = None


_output = Decoder(_Output)


@dataclass(slots=True)
class _Waiting:
    key: int
    call: ProbeCall
    due: float


class ProbeQueue:
    """The probes of one session. `concurrency` is that of the host's config (§4.1).

    `now` is in seconds of the reactor's clock. Each call that is asked is over
    exactly once.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._queued: deque[_Waiting] = deque()
        self._sent: dict[int, _Waiting] = {}
        self._ids = 0
        self.late = 0

    @property
    def out(self) -> int:
        """The number of requests that wait for an answer."""
        return len(self._sent)

    @property
    def queued(self) -> int:
        """The number of calls that wait for a slot."""
        return len(self._queued)

    @property
    def deadline(self) -> float | None:
        """When `time_passed` is due; None while nothing waits."""
        waiting = [*self._queued, *self._sent.values()]
        return min((one.due for one in waiting), default=None)

    def asked(self, key: int, call: ProbeCall, now: float) -> Todo:
        """A call is to be made; `key` is its caller's."""
        if len(self._queued) >= MAX_QUEUED:
            return [], [(key, BUSY)]
        self._queued.append(_Waiting(key, call, now + call.timeout_ms / 1000))
        return self._go_on(now)

    def allowed(self, concurrency: int, now: float) -> Todo:
        """The host's config says another `probe_concurrency` from now on."""
        self._concurrency = concurrency
        return self._go_on(now)

    def answered(self, response: jsonrpc.Response, now: float) -> Todo | None:
        """A response came; None if it is to nothing that was ever asked."""
        return self._ended(response.id, now, lambda: _outcome(response))

    def garbled(self, id: int | None, fault: jsonrpc.EnvelopeError, now: float) -> Todo | None:
        """What came cannot be read, but is the answer to this request; None if it is to nothing
        that was ever asked."""
        data = encode({"field": fault.field, "expected": fault.expected})
        unread = ProbeFailure(Code.INTERNAL_ERROR, "the answer cannot be read", data)
        return self._ended(id, now, lambda: unread)

    def _ended(
        self, id: jsonrpc.Id | None, now: float, outcome: Callable[[], ProbeOutcome]
    ) -> Todo | None:
        if isinstance(id, str) or id is None or not 1 <= id <= self._ids:
            return None
        waiting = self._sent.pop(int(id), None) if id == int(id) else None
        if waiting is None:
            self.late += 1
            return [], []
        messages, done = self._go_on(now)
        return messages, [(waiting.key, outcome()), *done]

    def time_passed(self, now: float) -> Todo:
        """Give up what is overdue, and use the slots that this frees."""
        done = [(one.key, _timed_out(one.call, sent=True)) for one in self._overdue(now)]
        messages, more = self._go_on(now)
        return messages, done + more

    def lost(self, why: ProbeFailure = LOST) -> list[Done]:
        """The session is over, and so is all that waits for it (F27)."""
        over = [*self._sent.values(), *self._queued]
        self._sent.clear()
        self._queued.clear()
        return [(one.key, why) for one in over]

    def _overdue(self, now: float) -> list[_Waiting]:
        ids = [id for id, one in self._sent.items() if now >= one.due]
        return [self._sent.pop(id) for id in ids]

    def _go_on(self, now: float) -> Todo:
        """Send what there is room for, and give up what waited in vain."""
        overdue = [one for one in self._queued if now >= one.due]
        if overdue:
            self._queued = deque(one for one in self._queued if now < one.due)
        messages = []
        while self._queued and len(self._sent) < self._concurrency:
            one = self._queued.popleft()
            self._ids += 1
            self._sent[self._ids] = one
            messages.append(_request(self._ids, one, now))
            one.due += GRACE
        return messages, [(one.key, _timed_out(one.call, sent=False)) for one in overdue]


def _request(id: int, one: _Waiting, now: float) -> bytes:
    """What is left of the time-out is what the agent gets (F44)."""
    left = min(one.call.timeout_ms, max(1, round((one.due - now) * 1000)))
    params = ProbeParams(probe=one.call.probe, args=Raw(one.call.args), timeout_ms=left)
    return jsonrpc.request(id, contract.PROBE_REQUEST, params)


def _timed_out(call: ProbeCall, *, sent: bool) -> ProbeFailure:
    reason = "no answer came in time" if sent else "no slot was free in time"
    data = encode({"probe": call.probe, "timeout_ms": call.timeout_ms})
    return ProbeFailure(Code.PROBE_TIMEOUT, reason, data)


def _outcome(response: jsonrpc.Response) -> ProbeOutcome:
    if response.error is not None:
        return _refused(response.error)
    assert response.result is not None
    try:
        answer = _output.decode(without_nul(response.result), utf8_checked=True)
        check_value(answer.output)
    except JsonError as error:
        data = encode({"field": error.field, "expected": error.expected})
        return ProbeFailure(Code.INTERNAL_ERROR, "the answer is no ProbeOutput", data)
    return ProbeAnswer(bytes(answer.output), answer.duration_ms, answer.exit_code, answer.stderr)


def _refused(error: jsonrpc.ErrorBody) -> ProbeFailure:
    """The agent's error; its message is the contract's where the code is known."""
    if not storable(error.code):
        where = encode({"field": "$.error.code", "expected": "an integer below 2**63"})
        return ProbeFailure(Code.INTERNAL_ERROR, "the answer's error code is out of range", where)
    try:
        reason = Code(error.code).title
    except ValueError:
        reason = f"error {error.code}"
    data: bytes | None = None
    if 0 < len(error.data) <= MAX_DATA_BYTES:
        try:
            check_value(error.data)
            data = bytes(without_nul(error.data))
        except JsonError:
            data = None
    return ProbeFailure(error.code, reason, data, by_agent=True)
