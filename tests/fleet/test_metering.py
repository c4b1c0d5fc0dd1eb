"""Samples are pushed at their interval, one push at a time (§4.5, F24)."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from itertools import count
from typing import Any

from msgspec.structs import replace
from twisted.trial.unittest import SynchronousTestCase

from cortextx.fleet import jsonrpc
from cortextx.fleet.agent.actions import Gather, Send
from cortextx.fleet.agent.metering import Metering
from cortextx.fleet.contract import DEFAULT_AGENT_CONFIG, MetricSample, MetricsParams
from tests.fleet.test_link import message

SAMPLES = MetricsParams(
    ts=datetime(2026, 5, 16, tzinfo=UTC), samples=[MetricSample(name="load1", value=1.0)]
)


class Meterings(SynchronousTestCase):
    def setUp(self) -> None:
        self.metering = Metering(count(1), lambda: 0.5)
        self.metering.configure(replace(DEFAULT_AGENT_CONFIG, metrics_interval_secs=60), 0.0)
        self.metering.begin(0.0)

    def push(self, now: float) -> int:
        """Let a push be due and sent; its id."""
        self.assertEqual(self.metering.time_passed(now), [Gather()])
        [sent] = self.metering.gathered(SAMPLES)
        assert isinstance(sent, Send)
        frame = json.loads(sent.payload)
        self.assertEqual(frame["method"], "metrics.push")
        return int(frame["id"])

    def answer(self, wait: float = 0.0, **members: Any) -> None:
        response = jsonrpc.parse(message(**members))
        assert isinstance(response, jsonrpc.Response)
        self.metering.answered(response, wait)

    def test_the_interval_with_jitter(self) -> None:
        """The first comes within 10 s, the next at most the interval later, up to a fifth early."""
        self.assertEqual(self.metering.time_passed(4.9), [])
        id = self.push(5.0)
        self.answer(id=id, result={"accepted": 1, "dropped": 2})
        self.assertEqual((self.metering.accepted, self.metering.dropped), (1, 2))
        self.assertEqual(self.metering.due_at, 5.0 + 54.0)

    def test_one_at_a_time(self) -> None:
        """An answer that is late holds the next samples back, and they are not kept."""
        id = self.push(5.0)
        self.assertEqual(self.metering.time_passed(60.0), [])
        self.answer(id=id, result={"accepted": 1})
        self.push(120.0)

    def test_a_refusal_is_respected(self) -> None:
        """The server's wait holds for the push after, within reason (A59)."""
        id = self.push(5.0)
        self.answer(wait=1e9, id=id, error={"code": -32020, "message": "x"})
        self.push(60.0)
        self.assertEqual(self.metering.due_at, 60.0 + 3600.0)

    def test_no_interval_no_samples(self) -> None:
        """null is none (§4.1), and a new interval holds at once."""
        self.metering.configure(replace(DEFAULT_AGENT_CONFIG, metrics_interval_secs=None), 1.0)
        self.assertEqual(self.metering.time_passed(1e9), [])
        self.metering.configure(replace(DEFAULT_AGENT_CONFIG, metrics_interval_secs=2), 10.0)
        self.assertEqual(self.metering.time_passed(11.0), [Gather()])

    def test_samples_of_another_connection_are_not_sent(self) -> None:
        self.metering.time_passed(5.0)
        self.metering.end()
        self.metering.begin(6.0)
        self.assertEqual(self.metering.gathered(SAMPLES), [])
        self.push(20.0)
