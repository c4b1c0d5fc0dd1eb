"""What becomes of one session's pushes: taken, refused, acked (PURE; §4.4, F9–F11, F33).

A refused push never turns into loss: every refusal goes through the connection's
Inbox, and a fence ping follows it at once. Where not even the seq of a refused
push can be read, the next seq that the host owes stands for it: from there on
nothing can be skipped. Where it cannot be told which request was refused (an
error whose id is null), no fence is sent, since the agent may not have
understood what it missed: only going back ends that refusal, or the fence of the
next one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cortextx.core.budgets import Gauge
from cortextx.core.delivery import Inbox
from cortextx.errors import StoreFull
from cortextx.fleet import jsonrpc
from cortextx.fleet.contract import Code, PushResult
from cortextx.fleet.server.actions import Action, Ingest, Ping, Send
from cortextx.fleet.server.pushes import PushFault, SourceNames, decode_push
from cortextx.fleet.server.quota import Quotas
from cortextx.interfaces.fleet import Appended, LogBatch

_FENCE = b"fence:"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class _Push:
    """A push that waits for the store."""

    id: jsonrpc.Id
    first: int
    received_at: int


class Intake:
    """The logs.push side of a session.

    `gauge` bounds the bytes of all sessions' waiting pushes: `batch.size` is
    reserved before an Ingest, and the ingest writer releases it. `retry_after_ms`
    is how long an agent should pause when that queue is full (-32020, -32007),
    `full_retry_after_ms` when the disk is. `quotas` are all hosts' (-32030).
    """

    def __init__(
        self, gauge: Gauge, retry_after_ms: int, full_retry_after_ms: int, quotas: Quotas
    ) -> None:
        self._gauge = gauge
        self._quotas = quotas
        self._wait = {"retry_after_ms": retry_after_ms}
        self._wait_full = {"retry_after_ms": full_retry_after_ms}
        self._host_id = ""
        self._accepted_seq = 0
        self._inbox = Inbox()
        self._sources = SourceNames()
        self._pending: dict[int, _Push] = {}
        self._keys = 0

    @property
    def pending(self) -> int:
        """The number of pushes that wait for the store."""
        return len(self._pending)

    @property
    def accepted_seq(self) -> int:
        """All up to here is stored, as far as this session knows."""
        return self._accepted_seq

    def begin(self, host_id: str, accepted_seq: int) -> None:
        """The session is a host's, from whom all up to `accepted_seq` is stored."""
        self._host_id = host_id
        self._accepted_seq = accepted_seq

    def pushed(
        self, request: jsonrpc.Request, payload: bytes, now: float, wall: int
    ) -> list[Action]:
        """A logs.push came in `payload`: check in F9's order, then give it to the store."""
        try:
            push = decode_push(request.params, payload, self._sources)
        except PushFault as fault:
            return self.refuse(request.id, fault.first, fault.code, fault.data)
        first, size = push.seq_start, len(payload)
        if not self._inbox.admits(first):
            back = self._wait | {"resend_from": self._inbox.resend_from}
            return self.refuse(request.id, first, Code.BACKPRESSURE, back)
        count = len(push.entries)
        if wait := self._quotas.take(self._host_id, count, now):
            data = {"retry_after_ms": wait}
            return self.refuse(request.id, first, Code.QUOTA_EXCEEDED, data)
        level = self._gauge.reserve(size)
        if level != "ok":
            # It is to come again, and is charged then.
            self._quotas.put_back(self._host_id, count)
            code = Code.BACKPRESSURE if level == "soft" else Code.BUFFER_OVERFLOW
            return self.refuse(request.id, first, code, self._wait)
        self._keys += 1
        self._pending[self._keys] = _Push(request.id, first, wall)
        return [Ingest(self._keys, LogBatch(self._host_id, first, push.entries, wall, size))]

    def stored(self, key: int, appended: Appended) -> list[Action]:
        """A batch is durable: this is its ack (F10, F11)."""
        push = self._pending.pop(key, None)
        if push is None:
            return []
        if appended.unknown_host:
            return self.refuse(push.id, push.first, Code.UNKNOWN_HOST)
        self._accepted_seq = max(self._accepted_seq, appended.up_to_seq)
        ack = PushResult(up_to_seq=appended.up_to_seq, received_at=moment(push.received_at))
        return [Send(jsonrpc.result(push.id, ack))]

    def not_stored(self, key: int, error: Exception) -> list[Action]:
        """Nothing of a batch was stored. Whoever stores must then store none of the
        batches behind it either: they were admitted before this refusal (F33)."""
        push = self._pending.pop(key, None)
        if push is None:
            return []
        if isinstance(error, StoreFull):
            return self.refuse(push.id, push.first, Code.BACKPRESSURE, self._wait_full)
        return self.refuse(push.id, push.first, Code.INTERNAL_ERROR)

    def refuse(
        self,
        id: jsonrpc.Id | None,
        first: int | None,
        code: Code,
        data: Mapping[str, Any] | None = None,
    ) -> list[Action]:
        """Refuse a push that starts at `first`, None where that cannot be told (F33)."""
        fence = self._inbox.refused(self._accepted_seq + 1 if first is None else first)
        refusal = Send(jsonrpc.error(id, code, data))
        return [refusal] if id is None else [refusal, Ping(_FENCE + b"%d" % fence)]

    def ponged(self, payload: bytes) -> bool:
        """Note a pong; answers whether it was to a fence (F33)."""
        fence = payload.removeprefix(_FENCE)
        if fence == payload:
            return False
        if fence.isdigit() and len(fence) < 19:
            self._inbox.fence_answered(int(fence))
        return True


def moment(wall: int) -> datetime:
    """µs since the epoch as the wire's date-time."""
    return _EPOCH + wall * _MICROSECOND
