"""What a host is told to do: checked members, layers, batch sizes (§4.1, §4.8, §8, F31)."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict
from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import JsonShapeError
from cortextx.fleet.contract import DEFAULT_AGENT_CONFIG as DEFAULT
from cortextx.fleet.server.configs import checked, fingerprint, instructed, merged


class CheckedTests(SynchronousTestCase):
    def test_good_members_come_back(self) -> None:
        """Members within the contract's bounds are kept as they are."""
        good: list[dict[str, Any]] = [
            {},
            {"heartbeat_interval_secs": 5},
            {"metrics_interval_secs": None},
            {"log_sources": []},
            {"log_sources": [{"kind": "file", "path": "/x/*.log", "labels": {"a": "b"}}]},
            {"log_sources": [{"kind": "journald", "filter": None}], "probe_concurrency": 64},
        ]
        for members in good:
            self.assertEqual(checked(members), members)

    def test_faults_are_named(self) -> None:
        """Each is refused with the path of the value at fault, before anything is stored."""
        cases: list[tuple[dict[str, Any], str]] = [
            ({"heartbeat_interval_secs": 4}, "$.heartbeat_interval_secs"),
            ({"heartbeat_interval_secs": 601}, "$.heartbeat_interval_secs"),
            ({"heartbeat_interval_secs": "30"}, "$.heartbeat_interval_secs"),
            ({"heartbeat_interval_secs": None}, "$.heartbeat_interval_secs"),
            ({"max_batch_entries": 65536}, "$.max_batch_entries"),
            ({"flush_interval_ms": 9}, "$.flush_interval_ms"),
            ({"metrics_interval_secs": 0}, "$.metrics_interval_secs"),
            ({"probe_concurrency": 65}, "$.probe_concurrency"),
            ({"log_sources": [{"kind": "files"}]}, "$.log_sources[0].kind"),
            ({"log_sources": [{"kind": "file"}]}, "$.log_sources[0].path"),
            ({"log_sources": [{"kind": "journald"}, {"path": "/x"}]}, "$.log_sources[1].kind"),
            ({"log_sources": [{"kind": "file", "path": "/a\nb"}]}, "$.log_sources[0].path"),
            ({"log_sources": [{"kind": "journald", "filtre": "x"}]}, "$.log_sources[0].filtre"),
            ({"heart_beat": 5}, "$.heart_beat"),
            ({"metrics_interval_secs": 2**70}, "$.metrics_interval_secs"),
            ({"metrics_interval_secs": 31_536_001}, "$.metrics_interval_secs"),
        ]
        for members, path in cases:
            fault = self.assertRaises(JsonShapeError, checked, members)
            self.assertEqual(fault.field, path, members)

    def test_an_unknown_member_is_answered_with_the_known_ones(self) -> None:
        """Who mistypes a name is told which there are, of the config and of a source; a
        name without end is cut."""
        fault = self.assertRaises(JsonShapeError, checked, {"nonsense": 2})
        self.assertIn("flush_interval_ms", fault.expected)
        sources = {"log_sources": [{"kind": "journald", "filtre": "x"}]}
        self.assertIn("filter", self.assertRaises(JsonShapeError, checked, sources).expected)
        fault = self.assertRaises(JsonShapeError, checked, {"x" * 10_000: 1})
        self.assertLess(len(fault.field), 100)


class MergedTests(SynchronousTestCase):
    def test_members_replace_the_defaults(self) -> None:
        """What is set is set whole, what is not is the default."""
        config, ignored = merged(
            DEFAULT, {"heartbeat_interval_secs": 60, "log_sources": [{"kind": "journald"}]}
        )
        self.assertEqual(ignored, [])
        self.assertEqual((config.heartbeat_interval_secs, len(config.log_sources)), (60, 1))
        self.assertEqual(config.flush_interval_ms, DEFAULT.flush_interval_ms)

    def test_null_is_a_value(self) -> None:
        """metrics_interval_secs null means no metrics, not the default."""
        config, _ = merged(DEFAULT, {"metrics_interval_secs": None})
        self.assertIsNone(config.metrics_interval_secs)
        self.assertEqual(DEFAULT.metrics_interval_secs, 60)

    def test_what_is_not_good_is_left_out(self) -> None:
        """A member that another version stored costs the host nothing else (A59)."""
        config, ignored = merged(
            DEFAULT, {"probe_concurrency": 0, "new": 1, "flush_interval_ms": 50}
        )
        self.assertEqual(ignored, ["probe_concurrency", "new"])
        self.assertEqual(asdict(config), asdict(DEFAULT) | {"flush_interval_ms": 50})


class InstructedTests(SynchronousTestCase):
    def test_batches_fit_both_sides(self) -> None:
        """The least of the config, the server's cap and the agent's hint is sent (F31, §8)."""
        big, _ = merged(DEFAULT, {"max_batch_entries": 5000})
        for preferred, sent in ((None, 1000), (200, 200), (9000, 1000)):
            self.assertEqual(instructed(big, preferred).max_batch_entries, sent)
        small, _ = merged(DEFAULT, {"max_batch_entries": 100})
        self.assertIs(instructed(small, 200), small)

    def test_fingerprints_tell_configs_apart(self) -> None:
        """The same config has the same one, another has another."""
        other, _ = merged(DEFAULT, {"flush_interval_ms": 50})
        same, _ = merged(DEFAULT, {"flush_interval_ms": DEFAULT.flush_interval_ms})
        self.assertEqual(fingerprint(same), fingerprint(DEFAULT))
        self.assertNotEqual(fingerprint(other), fingerprint(DEFAULT))
