"""Runs probes on hosts for operators: gate, send, wait, keep the record (§4.6, §8, F27).

The connection's part (slots, time-outs, correlation) is `probes`; here is which
host, whether it can run the probe at all, and what is kept of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import UNSET, Struct, UnsetType
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from cortextx.core.jsontext import Decoder, encode
from cortextx.errors import JsonError, LocalProtocolError, NotConnected, StoreError
from cortextx.fleet.contract import Code
from cortextx.fleet.server.probes import (
    MAX_ARGS_BYTES,
    ProbeAnswer,
    ProbeCall,
    ProbeFailure,
    storable,
)
from cortextx.interfaces.fleet_records import ProbeRecord

if TYPE_CHECKING:
    from twisted.python.failure import Failure

    from cortextx.fleet.server.probes import ProbeOutcome
    from cortextx.interfaces import fleet_records
    from cortextx.interfaces.fleet import HostRecord
    from cortextx.interfaces.fleet_records import IProbeRecords

DEFAULT_TIMEOUT_MS = 10_000
MAX_TIMEOUT_MS = 600_000

OUTCOMES: Mapping[int | None, fleet_records.ProbeOutcome] = {
    None: "lost",
    Code.PROBE_UNAVAILABLE: "unavailable",
    Code.PROBE_EXECUTION_FAILED: "failed",
    Code.PROBE_TIMEOUT: "timeout",
    Code.INVALID_PARAMS: "invalid",
}
"""How a record names an error code; any other is "error"."""


class Asked(Protocol):
    """A connection that can be asked for a probe."""

    def probe(self, key: int, call: ProbeCall) -> None:
        """Run it; `ProbeRouter.over` hears what came of it by `key`."""


class _Capabilities(Struct):
    supported_probes: list[str] | UnsetType = UNSET


class _Said(Struct):
    """What -32011 says beside its code (§5)."""

    stderr: str | None = None
    exit_code: int | None = None


_capabilities = Decoder(_Capabilities)
_said = Decoder(_Said)


class ProbeRouter:
    """See the module. `live` finds a host's connection, `wall` gives µs UTC.

    `records` is None where the store keeps none.
    """

    log = Logger()

    def __init__(
        self,
        live: Callable[[str], Asked | None],
        records: IProbeRecords | None,
        wall: Callable[[], int],
    ) -> None:
        self._live = live
        self._records = records
        self._wall = wall
        self._waiting: dict[int, Deferred[ProbeOutcome]] = {}
        self._keys = 0

    @property
    def waiting(self) -> int:
        """The number of probes that are not over."""
        return len(self._waiting)

    def run(
        self,
        host: HostRecord,
        probe: str,
        args: Mapping[str, Any],
        timeout_ms: int,
        actor: str,
    ) -> Deferred[ProbeRecord]:
        """Run a probe on a host; fires with its record, stored, however it ended.

        Fails with NotConnected, and with LocalProtocolError for arguments that
        are too long or no JSON. Who cancels it only stops waiting: the probe goes
        on, and its record is kept.
        """
        told: Deferred[ProbeRecord] = Deferred()
        Deferred.fromCoroutine(self._run(host, probe, args, timeout_ms, actor)).addCallbacks(
            told.callback, told.errback
        ).addErrback(self._broken)
        return told

    def over(self, key: int, outcome: ProbeOutcome) -> None:
        """What a connection was asked for is over."""
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            waiting.callback(outcome)

    async def _run(
        self, host: HostRecord, probe: str, args: Mapping[str, Any], timeout_ms: int, actor: str
    ) -> ProbeRecord:
        text = encode(args)
        if len(text) > MAX_ARGS_BYTES:
            raise LocalProtocolError(f"a probe's arguments take at most {MAX_ARGS_BYTES} bytes")
        socket = None if host.host_id is None else self._live(host.host_id)
        if host.host_id is None or socket is None:
            raise NotConnected(f"{host.name} is not connected")
        asked = ProbeRecord(
            host_id=host.host_id,
            probe=probe,
            args=text.decode(),
            actor=actor,
            requested_at=self._wall(),
            finished_at=0,
            outcome="lost",
        )
        if probe not in supported_probes(host):
            # Never sent: the host did not say that it can (§8).
            return await self._keep(asked, ProbeFailure(Code.PROBE_UNAVAILABLE, "not supported"))
        self._keys += 1
        outcome: Deferred[ProbeOutcome] = Deferred()
        self._waiting[self._keys] = outcome
        socket.probe(self._keys, ProbeCall(probe, text, timeout_ms))
        return await self._keep(asked, await outcome)

    async def _keep(self, asked: ProbeRecord, outcome: ProbeOutcome) -> ProbeRecord:
        record = replace(asked, finished_at=self._wall(), **_members(outcome))
        if self._records is None:
            return record
        try:
            return replace(record, id=await self._records.record_probe(record))
        except StoreError:
            # The answer is there, and is worth more than its record.
            self.log.failure("a probe's record could not be kept")
            return record
        except Exception as error:
            self.log.failure("a probe's answer could not be kept as it is")
            why = f"the answer cannot be stored: {type(error).__name__}"
        bare = ProbeFailure(Code.INTERNAL_ERROR, why)
        record = replace(asked, finished_at=record.finished_at, **_members(bare))
        try:
            return replace(record, id=await self._records.record_probe(record))
        except Exception:
            self.log.failure("a probe's record could not be kept")
            return record

    def _broken(self, failure: Failure) -> None:
        self.log.failure("a probe failed in the server", failure)


def supported_probes(host: HostRecord) -> frozenset[str]:
    """The probes that a host said it can run (§8)."""
    try:
        found = _capabilities.decode((host.capabilities or "{}").encode()).supported_probes
    except JsonError:
        return frozenset()
    return frozenset() if found is UNSET else frozenset(found)


def _members(outcome: ProbeOutcome) -> dict[str, Any]:
    """A record's members that say how a probe ended; a failure's data stands as its output."""
    if isinstance(outcome, ProbeAnswer):
        return {
            "outcome": "ok",
            "output": outcome.output.decode(),
            "exit_code": outcome.exit_code,
            "stderr": outcome.stderr,
            "duration_ms": outcome.duration_ms,
        }
    data = outcome.data
    if data is None and not outcome.by_agent:
        data = encode({"reason": outcome.reason})
    said = _Said()
    if data is not None and outcome.code == Code.PROBE_EXECUTION_FAILED:
        with suppress(JsonError):
            said = _said.decode(data)
    exit_code = said.exit_code
    return {
        "outcome": OUTCOMES.get(outcome.code, "error"),
        "code": None if outcome.code is None else int(outcome.code),
        "output": None if data is None else data.decode(),
        "exit_code": None if exit_code is None or not storable(exit_code) else exit_code,
        "stderr": said.stderr,
    }
