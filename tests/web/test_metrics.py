"""GET /metrics: who may read it, and what is in it."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from twisted.internet.defer import fail

from cortextx.errors import StoreError
from cortextx.fleet.server.settings import ServerSettings, ServerTable
from tests.web.case import HOST_A, WebCase


class Metrics(WebCase):
    def families(self, **more: Any) -> dict[str, Any]:
        """The families by name, as Prometheus' own parser reads them."""
        answer = self.begin("/metrics", **more).answer()
        self.assertEqual(answer.status, 200, answer.body)
        return {f.name: f for f in text_string_to_metric_families(answer.body.decode())}

    def value(self, name: str, **labels: str) -> float:
        families = self.families()
        samples = [sample for family in families.values() for sample in family.samples]
        [found] = [
            s.value for s in samples if s.name == name and labels.items() <= s.labels.items()
        ]
        return float(found)

    def test_it_needs_a_token(self) -> None:
        """Names of hosts are nobody's business: 401 without a token, unless it is public."""
        answer = self.begin("/metrics", role=None).answer()
        self.assertEqual(answer.status, 401)
        self.assertIn("www-authenticate", answer.headers)
        self.fleet.apply(ServerSettings(server=ServerTable(metrics_public=True)))
        self.assertIn("cortextx_live_hosts", self.families(role=None))

    def test_a_rebound_name(self) -> None:
        """A Host that is not ours is refused, public or not."""
        answer = self.begin("/metrics", headers={"Host": "evil.example"}).answer()
        self.assertEqual(answer.status, 421)

    def test_values(self) -> None:
        """It tells of hosts, ingest, the store and the API, with the values of this moment."""
        self.agent()
        self.push("one", "two")
        self.good("/hosts")
        self.refused(404, "/hosts/nobody")
        self.assertEqual(self.value("cortextx_live_hosts"), 1)
        self.assertEqual(self.value("cortextx_hosts", state="active"), 1)
        self.assertEqual(self.value("cortextx_ingest_entries_total"), 2)
        self.assertEqual(self.value("cortextx_store_entries"), 2)
        self.assertEqual(self.value("cortextx_host_accepted_seq", host_id=HOST_A, host="web1"), 2)
        self.assertEqual(self.value("cortextx_host_connected", host="web1"), 1)
        self.assertEqual(self.value("cortextx_api_answers_total", route="list_hosts"), 1)
        status = {"route": "show_host", "status": "404"}
        self.assertEqual(self.value("cortextx_api_answers_total", **status), 1)
        self.assertGreater(self.value("process_resident_memory_bytes"), 1e6)

    def test_many_hosts_hold_up_nobody(self) -> None:
        """Families of many hosts are written with turns for others in between."""
        for number in range(150):
            self.issue(f"h{number}", f"{number:08x}-7e3c-4d2a-9c0e-9bbf5d3a1f01")
        turns: list[float] = []
        later = self.clock.callLater

        def counted(delay: float, *more: Any) -> Any:
            turns.extend([delay] if delay == 0 else [])
            return later(delay, *more)

        self.patch(self.clock, "callLater", counted)
        client = self.begin("/metrics")
        self.assertEqual(client.transport.value(), b"")
        self.clock.advance(0)
        self.assertGreater(len(turns), 3)
        self.assertEqual(client.answer().body.count(b"\ncortextx_host_connected{"), 150)

    def test_openmetrics(self) -> None:
        """Who asks for OpenMetrics gets it."""
        answer = self.begin(
            "/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
        ).answer()
        self.assertIn("openmetrics", answer.headers["content-type"])
        self.assertTrue(answer.body.endswith(b"# EOF\n"))

    def test_no_name_is_told_twice(self) -> None:
        """Every family is there once, which Prometheus insists on."""
        text = self.begin("/metrics").answer().body.decode()
        names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE ")]
        self.assertEqual(sorted(set(names)), sorted(names))

    def test_odd_names_are_escaped(self) -> None:
        """A host's name may have quotes and backslashes in it."""
        self.issue('we"b\\1')
        self.assertEqual(self.value("cortextx_host_connected", host='we"b\\1'), 0)

    def test_a_store_that_fails(self) -> None:
        """What cannot be told is an error, never a scrape with holes."""
        self.patch(self.store, "stats", lambda: fail(StoreError("gone")))
        self.assertEqual(self.begin("/metrics").answer().status, 503)
