"""A server's configuration is tried, and one that does not do costs nothing (A58, A59)."""

from __future__ import annotations

from msgspec.structs import replace
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.marks import read_mark
from cortextx.fleet.agent.changing import (
    MAX_CUTS,
    TRIAL_SECONDS,
    ConfigTrial,
    Keep,
    Step,
    Tell,
    Use,
    fault_of,
    fingerprint,
)
from cortextx.fleet.agent.reports import config_reported
from cortextx.fleet.contract import DEFAULT_AGENT_CONFIG, AgentConfig, LogSourceConfig
from cortextx.fleet.server import configs

GOOD = DEFAULT_AGENT_CONFIG
NEW = replace(GOOD, flush_interval_ms=700)
OTHER = replace(GOOD, flush_interval_ms=900)


class Trials(SynchronousTestCase):
    def setUp(self) -> None:
        self.trial = ConfigTrial(GOOD)
        self.now = 100.0

    def look(
        self, seconds: float, session: str | None = "s", cut_by: str | None = None, **faults: str
    ) -> list[Step]:
        """Look once a second, as the agent does; all steps that came of it."""
        steps: list[Step] = []
        for _ in range(int(seconds)):
            self.now += 1
            steps += self.trial.looked(self.now, session, faults, cut_by=cut_by)
        return steps

    def propose(self, config: AgentConfig, pushed: bool = True, **faults: str) -> list[Step]:
        return self.trial.proposed(config, pushed, faults)

    def test_a58_what_does_well_is_kept(self) -> None:
        """It is in effect at once, and kept and told once its trial is over."""
        self.assertEqual(self.propose(NEW), [Use(NEW)])
        self.assertEqual((self.trial.effective, self.trial.standing.state), (NEW, "trying"))
        self.assertEqual(self.look(TRIAL_SECONDS), [])
        keep, tell = self.look(1)
        self.assertEqual(keep, Keep(NEW))
        assert isinstance(tell, Tell)
        self.assertEqual(
            (tell.standing.state, tell.standing.effective), ("applied", fingerprint(NEW))
        )
        self.assertEqual(self.look(60), [])

    def test_a58_a_source_that_fails_takes_it_back(self) -> None:
        """The last good one is in effect again, for the link too, and the server is told the
        failed hash and the reason."""
        self.propose(NEW)
        back, tell = self.look(1, **{"journald x": "no such unit"})
        self.assertEqual(back, Use(GOOD, back=True))
        assert isinstance(tell, Tell)
        standing = tell.standing
        self.assertEqual(standing.state, "rolled_back")
        self.assertEqual((standing.desired, standing.failed), (fingerprint(NEW),) * 2)
        self.assertEqual(standing.effective, fingerprint(GOOD))
        self.assertIn("no such unit", standing.reason or "")

    def test_a58_what_failed_before_is_not_its_fault(self) -> None:
        """A source that failed already is no reason to go back."""
        self.propose(NEW, x="gone")
        self.assertEqual(self.look(TRIAL_SECONDS, x="gone"), [])
        self.assertEqual(self.look(1, x="gone")[0], Keep(NEW))

    def test_a58_a_bad_push_never_costs_the_link(self) -> None:
        """A server that ends the connection again and again for what it is sent ends the
        trial; one such end, or an outage, does not."""
        self.propose(NEW)
        self.look(2, "s0")
        self.assertEqual(self.look(600, None), [])
        too_big = "the server closed the connection (1009)"
        for number in range(1, MAX_CUTS):
            self.assertEqual(self.look(2, f"s{number}", too_big), [])
        back, tell = self.look(1, "last", too_big)
        self.assertEqual(back, Use(GOOD, back=True))
        assert isinstance(tell, Tell)
        self.assertIn("1009", tell.standing.reason or "")

    def test_a58_a_server_that_restarts_is_no_fault(self) -> None:
        """However often it goes away, or the network breaks, the configuration is kept."""
        for why in ("the server closed the connection (1001)", "it broke off", "refused"):
            self.trial = ConfigTrial(GOOD)
            self.propose(NEW)
            for number in range(MAX_CUTS + 3):
                self.assertEqual(self.look(4, f"s{number}", why), [])
            self.assertEqual(self.look(TRIAL_SECONDS, "s", why)[0], Keep(NEW))

    def test_a58_what_waits_is_told(self) -> None:
        """A source that it brought and that waits for something (a daemon, a file) fails no
        trial, and the server is told that it waits."""
        self.propose(NEW, before="x")
        waiting = {"before": "x", "docker docker": "no daemon"}
        for _ in range(int(TRIAL_SECONDS) + 1):
            self.now += 1
            steps = self.trial.looked(self.now, "s", {}, waiting)
        tell = steps[-1]
        assert isinstance(tell, Tell)
        self.assertEqual(
            (tell.standing.state, tell.standing.reason),
            ("applied", "waiting: docker docker: no daemon"),
        )
        self.assertIn(b"no daemon", config_reported(tell.standing, 0))

    def test_a58_the_next_is_not_blocked(self) -> None:
        """After a failure another one is tried; the failed one again only if it is pushed."""
        self.propose(NEW)
        self.look(1, x="bad")
        self.assertEqual(self.propose(NEW, pushed=False), [Use(GOOD, back=True)])
        self.assertEqual(self.trial.standing.state, "rolled_back")
        self.assertEqual(self.propose(OTHER), [Use(OTHER)])
        self.look(1, y="bad")
        self.assertEqual(self.propose(OTHER), [Use(OTHER)])
        self.look(TRIAL_SECONDS)
        self.assertEqual(self.look(1)[0], Keep(OTHER))
        self.assertIsNone(self.trial.standing.failed)

    def test_the_newest_replaces_one_that_is_tried(self) -> None:
        """F22: it has a trial of its own, and the last good one stays to go back to."""
        self.propose(NEW)
        self.look(10)
        self.propose(OTHER)
        self.assertEqual(self.look(25), [])
        self.assertEqual(self.look(1, x="bad")[0], Use(GOOD, back=True))

    def test_going_back_is_a_push_too(self) -> None:
        """The good one, sent while another is tried, is in effect at once."""
        self.propose(NEW)
        self.assertEqual(self.propose(GOOD)[:2], [Use(GOOD), Keep(GOOD)])
        self.assertEqual(self.trial.effective, GOOD)

    def test_the_first_has_nothing_to_go_back_to(self) -> None:
        self.trial = ConfigTrial(None)
        self.assertEqual(self.propose(NEW, pushed=False), [Use(NEW), Keep(NEW)])

    def test_the_same_again_changes_nothing(self) -> None:
        """Every hello brings the configuration; nothing is told of what is so already."""
        self.assertEqual(self.propose(GOOD, pushed=False), [])
        self.propose(NEW)
        self.assertEqual(self.propose(NEW), [])

    def test_a59_what_is_out_of_range_changes_nothing(self) -> None:
        """It is told with a reason, once, and what was in effect stays."""
        many = replace(GOOD, log_sources=[LogSourceConfig(kind="journald")] * 2000)
        odd = replace(GOOD, log_sources=[LogSourceConfig(kind="file", path="/a\nb")])
        for bad in (many, odd, replace(GOOD, metrics_interval_secs=10**9)):
            self.assertIsNotNone(fault_of(bad))
            self.assertIn("refused", [s.standing.state for s in self.told(self.propose(bad))])
            self.assertEqual(self.told(self.propose(bad)), [])
            self.assertEqual(self.trial.effective, GOOD)
        [tell] = self.told(self.trial.refused("config: expected an object"))
        self.assertEqual(tell.standing.reason, "config: expected an object")
        self.assertEqual(self.trial.refused("config: expected an object"), [])

    def told(self, steps: list[Step]) -> list[Tell]:
        return [step for step in steps if isinstance(step, Tell)]

    def test_the_hash_is_the_servers(self) -> None:
        """Both sides name a configuration alike."""
        self.assertEqual(fingerprint(NEW), configs.fingerprint(NEW))

    def test_the_report_is_no_gap(self) -> None:
        """It is an entry of the agent's own source, and reads as no loss."""
        self.propose(NEW)
        self.look(1, x="bad")
        body = config_reported(self.trial.standing, 0)
        self.assertIn(b'"failed":"%b"' % fingerprint(NEW).encode(), body)
        metadata = body[body.index(b'"metadata":') + 11 : -1]
        self.assertIsNone(read_mark(metadata))
