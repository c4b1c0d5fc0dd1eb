"""When this host's samples are pushed, and what their answers mean (PURE; §4.5, F24).

Samples are taken when they are due and never kept: one push at a time, and what is
refused or unanswered is not repeated. Hosts that started together drift apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import TYPE_CHECKING

from msgspec import Raw

from cortextx.core import jsontext
from cortextx.errors import JsonError
from cortextx.fleet import jsonrpc
from cortextx.fleet.agent.actions import Action, Gather, Say, Send
from cortextx.fleet.contract import METRICS_PUSH, MetricsResult

if TYPE_CHECKING:
    from cortextx.fleet.contract import AgentConfig, MetricsParams

FIRST_SECONDS = 10.0
"""The longest wait for the first push of a connection."""
LONGEST_WAIT = 3600.0
"""The longest that a refusal may put the samples off, in seconds (A59)."""
_result = jsontext.Decoder(MetricsResult)


class Metering:
    """The samples of one link, over all its connections."""

    def __init__(self, ids: Iterator[int], random: Callable[[], float]) -> None:
        self._ids = ids
        self._random = random
        self._interval: float | None = None
        self._open = False
        self._pending: int | None = None
        self._gathering = False
        self._least = 0.0
        self.due_at = inf
        self.accepted = 0
        self.dropped = 0

    def configure(self, config: AgentConfig, now: float) -> None:
        """Take the server's interval; none means no samples."""
        before, self._interval = self._interval, config.metrics_interval_secs
        if before != self._interval and self._open:
            self._plan_first(now)

    def begin(self, now: float) -> None:
        """A connection is active."""
        self._open = True
        self._least = 0.0
        self._plan_first(now)

    def end(self) -> None:
        """The connection is over."""
        self._open = self._gathering = False
        self._pending = None
        self.due_at = inf

    def time_passed(self, now: float) -> list[Action]:
        """Take samples when they are due, unless the last push is unanswered."""
        if now < self.due_at or self._interval is None:
            return []
        # Up to a fifth early, as with heartbeats.
        wait = self._interval * (1 - self._random() / 5)
        self.due_at = now + max(wait, self._least)
        self._least = 0.0
        if self._pending is not None or self._gathering:
            return []
        self._gathering = True
        return [Gather()]

    def gathered(self, params: MetricsParams | None) -> list[Action]:
        """The samples that Gather asked for; None if there are none."""
        was, self._gathering = self._gathering, False
        if not was or not self._open or params is None:
            return []
        self._pending = next(self._ids)
        return [Send(jsonrpc.request(self._pending, METRICS_PUSH, params))]

    def awaits(self, key: object) -> bool:
        """Whether `key` is the id of the push that is unanswered."""
        return self._pending is not None and key == self._pending

    def answered(self, response: jsonrpc.Response, wait: float) -> list[Action]:
        """The server answered; `wait` is what a refusal asks for, in seconds."""
        self._pending = None
        if response.error is not None:
            self._least = min(wait, LONGEST_WAIT)
            return [Say("info", f"samples were refused with error {response.error.code}")]
        try:
            found = _result.decode(response.result or Raw(b"null"))
        except JsonError as error:
            return [Say("info", f"the answer to samples is wrong: {error}")]
        self.accepted += found.accepted
        self.dropped += found.dropped
        return []

    def _plan_first(self, now: float) -> None:
        if self._interval is None:
            self.due_at = inf
        else:
            self.due_at = now + self._random() * min(self._interval, FIRST_SECONDS)
