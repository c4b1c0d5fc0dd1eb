"""What becomes of one session's metrics.push requests (PURE; §4.5, F24).

They are given to the store one by one and answered once they are stored. Samples
may be lost, logs may not: where the server is short of room a push of samples is
the first to be put off.
"""

from __future__ import annotations

from cortextx.core.budgets import Gauge
from cortextx.errors import StoreFull
from cortextx.fleet import jsonrpc
from cortextx.fleet.contract import Code, MetricsResult
from cortextx.fleet.server.actions import Action, Measure, Send
from cortextx.fleet.server.pushes import PushFault, decode_metrics

MAX_PENDING = 4
"""Pushes of samples of one session that may wait for the store."""


class Samples:
    """The metrics.push side of a session.

    `gauge` is what bounds the bytes of all waiting pushes: a push's size is
    reserved before a Measure, and whoever stores the samples releases it.
    `retry_after_ms` is how long an agent should pause when there is no room,
    `full_retry_after_ms` when the disk is full.
    """

    __slots__ = ("_gauge", "_keys", "_pending", "_wait", "_wait_full")

    def __init__(self, gauge: Gauge, retry_after_ms: int, full_retry_after_ms: int) -> None:
        self._gauge = gauge
        self._wait = {"retry_after_ms": retry_after_ms}
        self._wait_full = {"retry_after_ms": full_retry_after_ms}
        self._pending: dict[int, jsonrpc.Id] = {}
        self._keys = 0

    def pushed(self, request: jsonrpc.Request, size: int, host_id: str) -> list[Action]:
        """A metrics.push came in a message of `size` bytes: check it, then have it stored."""
        try:
            metrics = decode_metrics(request.params)
        except PushFault as fault:
            return [Send(jsonrpc.error(request.id, fault.code, fault.data))]
        if len(self._pending) >= MAX_PENDING or self._gauge.reserve(size) != "ok":
            return [Send(jsonrpc.error(request.id, Code.BACKPRESSURE, self._wait))]
        self._keys += 1
        self._pending[self._keys] = request.id
        return [Measure(self._keys, host_id, metrics, size)]

    def done(self, key: int, outcome: tuple[int, int] | Exception) -> list[Action]:
        """So many samples are stored, and so many will never be (F24); or the store
        failed, and none of them is."""
        id = self._pending.pop(key, None)
        if id is None:
            return []
        match outcome:
            case (accepted, dropped):
                result = MetricsResult(accepted=accepted, dropped=dropped)
                return [Send(jsonrpc.result(id, result))]
            case StoreFull():
                return [Send(jsonrpc.error(id, Code.BACKPRESSURE, self._wait_full))]
            case _:
                return [Send(jsonrpc.error(id, Code.INTERNAL_ERROR))]
