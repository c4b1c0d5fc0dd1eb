"""An agent's health and the reasons for it (A37)."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from cortextx.fleet.agent.changing import Standing
from cortextx.fleet.agent.health import FIRST_WAIT, LONGEST_WAIT, Judged, Waits, judge
from cortextx.fleet.agent.policy import LeftOut
from cortextx.fleet.agent.sources.report import SourceReport

RUNS = SourceReport("docker", "docker")
WAITS = SourceReport("docker", "docker", "waiting", "no daemon")


class Waiting(SynchronousTestCase):
    def setUp(self) -> None:
        self.waits = Waits()

    def troubled(self, now: float, *reports: SourceReport) -> list[SourceReport]:
        self.waits.looked(now, reports)
        return self.waits.troubled(now, reports)

    def test_one_that_never_ran(self) -> None:
        """It is told soon after the start."""
        self.assertEqual(self.troubled(0, WAITS), [])
        self.assertEqual(self.troubled(FIRST_WAIT, WAITS), [WAITS])
        self.assertEqual(self.troubled(FIRST_WAIT + 1, RUNS), [])

    def test_one_that_ran(self) -> None:
        """It may wait for a minute each time."""
        self.troubled(0, RUNS)
        self.assertEqual(self.troubled(1, WAITS), [])
        self.assertEqual(self.troubled(LONGEST_WAIT, WAITS), [])
        self.assertEqual(self.troubled(LONGEST_WAIT + 1, WAITS), [WAITS])
        self.troubled(100, RUNS)
        self.assertEqual(self.troubled(101, WAITS), [])

    def test_one_that_failed_or_is_in_trouble(self) -> None:
        """It is told at once."""
        failed = SourceReport("x", "custom", "failed", "no")
        partly = SourceReport("files", "file", details={"trouble": "too many files"})
        self.assertEqual(self.troubled(0, failed, partly, RUNS), [failed, partly])

    def test_rest_is_no_trouble(self) -> None:
        """Neither a command between two runs nor a source that the agent holds back is told."""
        rests = SourceReport("x", "custom", "waiting", "exited", details={"at_rest": True})
        held = SourceReport("y", "file", "paused")
        for now in (0, 1000):
            self.assertEqual(self.troubled(now, rests, held), [])


class Judging(SynchronousTestCase):
    def judged(self, **members: Any) -> Judged:
        good: dict[str, Any] = {
            "state": "active", "why": "", "broken": None, "full": None, "apart": [],
            "troubled": [], "left_out": [], "config": Standing(),
        }  # fmt: skip
        return judge(**{**good, **members})

    def test_a37_a_reason_for_each(self) -> None:
        """Whatever is not green has its reason in words."""
        for members, health, word in (
            ({}, "green", None),
            ({"broken": "EIO"}, "red", "EIO"),
            ({"apart": ["quarantine-1"]}, "red", "quarantine-1"),
            ({"state": "revoked"}, "red", "revoked"),
            ({"state": "backoff", "why": "refused"}, "yellow", "refused"),
            ({"full": "no space"}, "yellow", "no space"),
            ({"troubled": [WAITS]}, "yellow", "docker docker waits: no daemon"),
            ({"left_out": [LeftOut("journald", "j", "local", "no journal")]}, "yellow", "no jour"),
            ({"left_out": [LeftOut("docker", "d", "server", "not allowed")]}, "green", None),
            ({"config": Standing("rolled_back", reason="bad")}, "yellow", "taken back: bad"),
            ({"config": Standing("refused", reason="bad")}, "yellow", "cannot be used: bad"),
        ):
            found = self.judged(**members)
            self.assertEqual((found.health, len(found.why)), (health, int(word is not None)))
            self.assertIn(word or "", " ".join(found.why))

    def test_the_gravest_first(self) -> None:
        found = self.judged(broken="EIO", troubled=[WAITS], state="backoff")
        self.assertEqual(found.health, "red")
        self.assertIn("EIO", found.why[0])
        self.assertEqual(len(found.why), 3)
