"""What the server asks of an agent, and the answers (PURE; §4.6, §4.7, F27, F44).

Probes run elsewhere: here is which of them are asked for, and by which id. What was
asked on a connection that is over is answered to nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from cortextx.errors import JsonError
from cortextx.fleet import jsonrpc
from cortextx.fleet.agent.actions import Action, CancelProbes, RunProbe, Send
from cortextx.fleet.contract import PROBE_REQUEST, Code, ProbeOutput, ProbeParams

MAX_PROBES = 64
"""Probes of one connection that are unanswered at most."""


class ProbeError(NamedTuple):
    """Why a probe has no output: an error of §5 and its data."""

    code: Code
    data: dict[str, Any]


class Asked:
    """The server's unanswered requests. Tickets are never given twice."""

    def __init__(self, ids: Iterator[int]) -> None:
        self._ids = ids
        self._open: dict[int, jsonrpc.Id] = {}

    def __len__(self) -> int:
        return len(self._open)

    def request(self, request: jsonrpc.Request) -> list[Action]:
        """The server asks for something."""
        if request.method != PROBE_REQUEST:
            return [Send(jsonrpc.error(request.id, Code.METHOD_NOT_FOUND))]
        try:
            probe = jsonrpc.decode_params(request.params, ProbeParams)
        except JsonError as error:
            data = {"field": error.field, "expected": error.expected}
            return [Send(jsonrpc.error(request.id, Code.INVALID_PARAMS, data))]
        if len(self._open) >= MAX_PROBES:
            said = f"{MAX_PROBES} probes are unanswered already"
            why: dict[str, Any] = {"probe": probe.probe, "stderr": said, "exit_code": None}
            return [Send(jsonrpc.error(request.id, Code.PROBE_EXECUTION_FAILED, why))]
        ticket = next(self._ids)
        self._open[ticket] = request.id
        return [RunProbe(ticket, probe.probe, probe.args, probe.timeout_ms / 1000)]

    def done(self, ticket: int, outcome: ProbeOutput | ProbeError) -> list[Action]:
        """What became of a RunProbe."""
        if ticket not in self._open:
            return []
        id = self._open.pop(ticket)
        if isinstance(outcome, ProbeOutput):
            return [Send(jsonrpc.result(id, outcome))]
        return [Send(jsonrpc.error(id, outcome.code, outcome.data))]

    def forget(self) -> list[Action]:
        """The connection is over."""
        if not self._open:
            return []
        self._open.clear()
        return [CancelProbes()]
