"""Rulings as an agent carries them out, by its machines: link, buffer, records, policy.

What only real files, processes and sockets show is in tests/fleet and
tests/integration; README says where.
"""

from __future__ import annotations

import json
from base64 import b64decode
from datetime import UTC, datetime
from typing import Any

import msgspec
from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import ConfigError
from cortextx.fleet.agent.actions import (
    CancelProbes,
    Close,
    Configure,
    Connect,
    DeleteToken,
    PauseSources,
    ReadBatch,
    RunProbe,
    Say,
    SetAside,
    StoreToken,
)
from cortextx.fleet.agent.asked import ProbeError
from cortextx.fleet.agent.buffer_lane import BufferStatus
from cortextx.fleet.agent.entries import encode_body
from cortextx.fleet.agent.policy import LeftOut, is_pattern, plan
from cortextx.fleet.agent.reports import refusal_reported
from cortextx.fleet.agent.samples import agent_samples, bounded, host_samples
from cortextx.fleet.agent.settings import (
    DEFAULT_ALLOW,
    AgentSettings,
    AgentTable,
    SourceTable,
    check,
)
from cortextx.fleet.agent.settings import ServerTable as AgentServerTable
from cortextx.fleet.agent.sources.lines import RecordEncoder, pieces
from cortextx.fleet.agent.sources.report import SourceReport
from cortextx.fleet.contract import (
    DEFAULT_AGENT_CONFIG,
    MAX_ENTRY_BYTES,
    Code,
    LogEntry,
    LogSourceConfig,
    MetricsParams,
    ProbeOutput,
)
from cortextx.testing.disk import SimulatedDisk
from tests.contracts import examples, schemas
from tests.fleet import test_link as kit
from tests.fleet.buffer_life import Writer, everything
from tests.fleet.test_link import (
    CONFIG,
    FRESH,
    activate,
    authenticating,
    make,
    message,
    only,
    quiet,
    refusal,
    sent,
    welcome,
)

NOW = 1_786_257_000_000_000


def on_the_wire(body: bytes, seq: int = 1) -> Any:
    return json.loads(b'{"seq":%d,' % seq + body)


class Frames(SynchronousTestCase):
    def test_s4_what_the_agent_sends_fits_the_schemas(self) -> None:
        """Its hello, pushes and answers are the contract's shapes, all of them."""
        link = make(last=3)
        link.started(0.0)
        [hello] = sent(link.connected(0.0))
        self.assertEqual(schemas.faults(schemas.HELLO_PARAMS, hello["params"]), [])
        link.frame_received(welcome(hello["id"]), 0.0)
        link.adopted(0, 3, 0.0)
        push, _ = kit.push(link, 1, 3)
        self.assertEqual(schemas.faults(schemas.PUSH_PARAMS, push["params"]), [])
        asked = message(id=5, method="probe.request", params=examples.PARAMS["probe.request"])
        [probe] = only(RunProbe, link.frame_received(asked, 0.0))
        self.assertEqual((probe.probe, probe.args, probe.seconds), ("proc.top", {"count": 5}, 2.0))
        output = ProbeOutput(output=msgspec.Raw(b"[1]"), duration_ms=3)
        [answer] = sent(link.probe_done(probe.ticket, output, 0.1))
        self.assertEqual((answer["id"], answer["result"]["output"]), (5, [1]))
        self.assertEqual(schemas.faults(schemas.PROBE_OUTPUT, answer["result"]), [])
        [probe] = only(RunProbe, link.frame_received(asked, 0.2))
        error = ProbeError(Code.PROBE_UNAVAILABLE, {"probe": "proc.top"})
        [answer] = sent(link.probe_done(probe.ticket, error, 0.3))
        self.assertEqual((answer["id"], answer["error"]["code"]), (5, -32010))

    def test_f24_the_agents_samples(self) -> None:
        """What the agent measures of a host is a metrics.push of the contract's shape."""
        status = BufferStatus(depth=3, evicted=7)
        report = SourceReport("x", "file", counters={"entries": 2})
        rules = {"r": {"dropped": 1}}
        samples = [*agent_samples(status, [report], rules), *host_samples()]
        at = datetime(2026, 5, 16, tzinfo=UTC)
        params = MetricsParams(ts=at, samples=bounded(samples))
        wire = json.loads(msgspec.json.encode(params))
        self.assertEqual(schemas.faults(schemas.METRICS_PARAMS, wire), [])
        values = {one["name"]: one["value"] for one in wire["samples"]}
        self.assertEqual((values["buffer_entries"], values["buffer_evicted_entries"]), (3, 7))
        self.assertEqual((values["source_entries_total"], values["rule_dropped_total"]), (2, 1))
        self.assertLessEqual({"load1", "mem_used_pct", "agent_rss_bytes"}, set(values))

    def test_f27_f44_probes_of_a_connection_that_is_gone(self) -> None:
        """Their answer goes to nobody, on this connection or the next, and they end."""
        link = make()
        activate(link)
        asked = message(id=5, method="probe.request", params=examples.PARAMS["probe.request"])
        [probe] = only(RunProbe, link.frame_received(asked, 0.0))
        self.assertEqual(len(only(CancelProbes, link.peer_lost("reset", 1.0))), 1)
        output = ProbeOutput(output=None, duration_ms=1)
        self.assertEqual(sent(link.probe_done(probe.ticket, output, 1.1)), [])

    def test_f42_entries_are_raw_utf8(self) -> None:
        """A body keeps letters as they are and is a LogBatchEntry of the schema."""
        body = encode_body(ts=NOW, severity="err", message="é日", source="file:/é", app_name="a")
        self.assertIn("é日".encode(), body)
        self.assertEqual(schemas.faults(schemas.ENTRY, on_the_wire(body)), [])


class Buffers(SynchronousTestCase):
    def test_f1_f2_a_new_buffer_is_numbered_behind_accepted_seq(self) -> None:
        """What was tailed before the first HelloResult starts at accepted_seq + 1."""
        for accepted in (0, 41):
            writer = Writer(SimulatedDisk())
            writer.put(3)
            self.assertIsNone(writer.buffer.next_seq)
            writer.buffer.adopt(accepted)
            self.assertEqual(list(everything(writer.buffer)), [accepted + n for n in (1, 2, 3)])

    def test_f2_a_server_that_is_ahead_renumbers(self) -> None:
        """next_seq at or below accepted_seq: what is not acked moves behind it, all of it."""
        for accepted in (10, 11, 500):
            writer = Writer(SimulatedDisk())
            writer.buffer.adopt(0)
            writer.put(10)
            list(everything(writer.buffer))  # what was read may have been sent
            writer.buffer.truncate(8)
            found = writer.buffer.adopt(accepted)
            kept = list(everything(writer.buffer))
            expected = [] if accepted == 10 else [accepted + 1, accepted + 2]
            self.assertEqual((kept, found.renumbered), (expected, accepted != 10), accepted)

    def test_f26_a_server_that_is_behind_changes_nothing(self) -> None:
        """What was dropped as acked is not owed again: the agent goes on from what it has."""
        writer = Writer(SimulatedDisk())
        writer.buffer.adopt(0)
        writer.put(10)
        writer.buffer.truncate(8)
        writer.buffer.adopt(3)
        self.assertEqual(list(everything(writer.buffer)), [9, 10])


class Records(SynchronousTestCase):
    def entries(self, *lines: bytes) -> list[Any]:
        bodies = RecordEncoder("file:/l").encode(list(lines), NOW, NOW)
        return [on_the_wire(body) for body in bodies]

    def test_f16_bad_bytes_are_replaced_and_kept(self) -> None:
        """U+FFFD in the text, the very bytes in metadata.cortextx.raw; neighbours untouched."""
        before, found, behind = self.entries(b"one", b"a\xffb", b"two")
        self.assertEqual((before["message"], behind["message"]), ("one", "two"))
        self.assertEqual(found["message"], "a\ufffdb")
        self.assertEqual(b64decode(found["metadata"]["cortextx"]["raw"]), b"a\xffb")

    def test_f17_f43_long_lines_are_split(self) -> None:
        """Parts of 65,536 characters, numbered from 1, the last with their number."""
        text = "é" * 150_000
        found = self.entries(text.encode())
        self.assertEqual("".join(one["message"] for one in found), text)
        marks = [one["metadata"]["cortextx"] for one in found]
        self.assertEqual(marks, [{"part": 1}, {"part": 2}, {"part": 3, "parts": 3}])
        for one in found:
            self.assertEqual(schemas.faults(schemas.ENTRY, one), [])

    def test_f17_an_entry_stays_below_512_kib(self) -> None:
        """Metadata is cut first, and flagged."""
        metadata = {"big": "x" * 600_000, "cortextx": {"part": 1}}
        body = encode_body(
            ts=NOW, severity="info", message="m", source="file:/x", metadata=metadata
        )
        self.assertLess(len(body), MAX_ENTRY_BYTES)
        self.assertEqual(on_the_wire(body)["metadata"], {"cortextx": {"part": 1, "cut": True}})

    def test_f15_a_time_without_offset_is_never_sent(self) -> None:
        """A naive time is a fault of ours, found before anything is buffered."""
        for line in (b"Feb  3 23:04:01 h a[1]: x", b"2026-02-28 04:45:01 x", b"x"):
            [found] = self.entries(line)
            self.assertEqual(schemas.faults(schemas.ENTRY, found), [], found)

    def test_f43_an_unfinished_last_line(self) -> None:
        """It is marked partial."""
        self.assertEqual(pieces(b"end", partial=True)[0].marks, {"partial": True})


class Policy(SynchronousTestCase):
    def test_f18_what_runs(self) -> None:
        """The server's sources as far as allow_sources covers them, and all local ones."""
        asked = [
            LogSourceConfig(kind="file", path="/var/log/app.log"),
            LogSourceConfig(kind="file", path="/etc/shadow"),
            LogSourceConfig(kind="docker"),
            LogSourceConfig(kind="custom", path="listener"),
        ]
        local = [SourceTable(kind="file", path="/srv/x.log", name="x")]
        found = plan(asked, DEFAULT_ALLOW, local)
        self.assertEqual({one.path for one in found.run}, {"/srv/x.log", "/var/log/app.log"})
        self.assertEqual(
            [one.name for one in found.left_out], ["/etc/shadow", "docker", "listener"]
        )

    def test_f18_the_default_allow(self) -> None:
        """journald and files below the log directories; not docker."""
        self.assertIn("journald", DEFAULT_ALLOW)
        self.assertNotIn("docker", DEFAULT_ALLOW)
        run = plan(DEFAULT_AGENT_CONFIG.log_sources, DEFAULT_ALLOW, ()).run
        self.assertIn("/var/log/**/*.log", [one.path for one in run])

    def test_f20_the_agent_wants_consent_for_ws(self) -> None:
        """ws:// to another machine is refused without allow_insecure; wss:// and loopback pass."""
        for url, good in (
            ("wss://logs.example/ws/agent", True),
            ("ws://127.0.0.1:8600/ws/agent", True),
            ("ws://[::1]:8600/ws/agent", True),
            ("ws://logs.example/ws/agent", False),
            ("ws://10.0.0.1/ws/agent", False),
        ):
            settings = AgentSettings(server=AgentServerTable(url=url))
            if good:
                check(settings, "agent")
            else:
                self.assertRaises(ConfigError, check, settings, "agent")
                consent = AgentTable(allow_insecure=True)
                check(AgentSettings(server=settings.server, agent=consent), "agent")

    def test_f41_entries_of_allow_sources(self) -> None:
        """journald, docker, file:GLOB and custom:NAME, and nothing else."""
        for text, good in (
            ("journald", True), ("docker", True), ("file:/a/*", True), ("custom:x", True),
            ("file", False), ("file:a", False), ("custom:", False), ("exec", False), ("", False),
        ):  # fmt: skip
            self.assertEqual(is_pattern(text), good, text)


class Link(SynchronousTestCase):
    def test_f22_the_newest_config_wins(self) -> None:
        """A pending one is replaced, an invalid one changes nothing, not even what is pending."""
        link = make()
        activate(link)

        def update(after: str | None, **changed: Any) -> list[Any]:
            params = {"apply_after": after, "config": {**CONFIG, **changed}}
            return link.frame_received(message(method="config.update", params=params), 10.0)

        update("2026-05-16T20:01:00Z", flush_interval_ms=600)
        update("2026-05-16T20:00:50Z", flush_interval_ms=700)
        for bad in ({"flush_interval_ms": 9}, {"probe_concurrency": 65}, {"log_sources": {}}):
            self.assertEqual(only(Configure, update(None, **bad)), [])
        [applied] = only(Configure, link.time_passed(55.0))
        self.assertEqual(applied.config.flush_interval_ms, 700)
        self.assertEqual(only(Configure, link.time_passed(65.0)), [])

    def test_f25_f35_poison_is_refused_alone_three_times(self) -> None:
        """The batch is halved to the entry; it is set aside at the third refusal and passed."""
        link = make()
        got = activate(link, last=64)
        alone = 0
        aside: list[SetAside] = []
        for _ in range(60):
            if not (reads := only(ReadBatch, got)):
                break
            count = min(reads[0].max_entries, 64 - reads[0].first + 1)
            frame, _ = kit.push(link, reads[0].first, count)
            seqs = [entry["seq"] for entry in frame["params"]["entries"]]
            alone += seqs == [23]
            if 23 in seqs:
                got = link.frame_received(refusal(frame["id"], -32602), 0.0)
            else:
                ack = message(id=frame["id"], result={"up_to_seq": seqs[-1]})
                got = link.frame_received(ack, 0.0)
            aside += only(SetAside, got)
        self.assertEqual(([one.seq for one in aside], alone, link.acked), ([23], 3, 64))

    def test_f33_the_agent_goes_back_n(self) -> None:
        """In-flight pushes are answered first, then all is sent again from s."""
        link = make()
        activate(link, last=3000)
        first, _ = kit.push(link, 1, 1000)
        link.frame_received(message(id=first["id"], result={"up_to_seq": 1000}), 0.1)
        second, _ = kit.push(link, 1001, 1000, 0.1)
        third, _ = kit.push(link, 2001, 1000, 0.1)
        got = link.frame_received(refusal(second["id"], -32020, retry_after_ms=100), 0.2)
        self.assertEqual(only(ReadBatch, got), [])
        link.frame_received(refusal(third["id"], -32020, retry_after_ms=100, resend_from=1001), 0.3)
        [read] = only(ReadBatch, link.time_passed(1.0))
        self.assertEqual(read.first, 1001)

    def test_f34_which_answers_are_fatal(self) -> None:
        """-32001, -32003 and -32005 wait for an operator; all others come back by themselves."""
        for code in sorted(set(schemas.TITLES) | {-31999, -32099}):
            link = make()
            link.frame_received(refusal(authenticating(link), code), 0.0)
            expected = {-32001: "fatal_auth", -32003: "fatal_auth", -32005: "fatal_auth"}
            expected[-32002] = "revoked"
            self.assertEqual(link.state, expected.get(code, "reconnecting"), code)
            if link.state == "reconnecting":
                link.peer_lost("4001", 0.0)
                self.assertEqual(link.attempt_at, 30.0, "half of the maximum, by this chance")

    def test_f34_the_waiting_room(self) -> None:
        """Sources rest, the token stays, and a retry makes exactly one attempt."""
        link = make()
        got = link.frame_received(refusal(authenticating(link), -32001), 0.0)
        self.assertEqual((only(PauseSources, got), only(DeleteToken, got)), ([PauseSources()], []))
        link.peer_lost("4001", 0.0)
        self.assertEqual(quiet(link.retry_requested(5.0)), [Connect()])
        id = sent(link.connected(5.0))[0]["id"]
        link.frame_received(refusal(id, -32001), 5.0)
        link.peer_lost("4001", 5.0)
        self.assertEqual(only(Connect, link.time_passed(1e7)), [])

    def test_f35_other_push_errors_reconnect(self) -> None:
        """-32603, -32004, and -32700 with a null id close; the next window is one push."""
        for code, null in ((-32603, False), (-32004, False), (-32700, True)):
            link = make()
            activate(link, last=5000)
            frame, _ = kit.push(link, 1, 1000)
            got = link.frame_received(refusal(None if null else frame["id"], code), 9.0)
            self.assertEqual(len(only(Close, got)), 1)
            link.peer_lost("closed", 9.0)
            self.assertEqual(link.attempt_at, 39.0)
            link.time_passed(39.0)
            link.frame_received(welcome(sent(link.connected(39.0))[0]["id"]), 39.0)
            link.adopted(0, 5000, 39.0)
            _, got = kit.push(link, 1, 1000, 39.0)
            self.assertEqual(only(ReadBatch, got), [])

    def test_f36_a_dead_path_is_left(self) -> None:
        """70 s without a ping, or 30 s without an answer to a push."""
        link = make()
        activate(link)
        self.assertEqual(only(Close, link.time_passed(69.9)), [])
        self.assertEqual(len(only(Close, link.time_passed(70.0))), 1)
        link = make()
        activate(link, last=3)
        kit.push(link, 1, 3)
        self.assertEqual(only(Close, link.time_passed(29.9)), [])
        self.assertEqual(len(only(Close, link.time_passed(30.0))), 1)

    def test_f36_resume_from_seq_is_acked(self) -> None:
        """The hello tells what was acked, at the first connection and at later ones."""
        link = make(acked=12, last=20)
        link.started(0.0)
        self.assertEqual(sent(link.connected(0.0))[0]["params"]["resume_from_seq"], 12)

    def test_f42_nothing_goes_out_before_the_result_is_stored(self) -> None:
        """Between the hello and the stored result no message is sent, whatever happens."""
        link = make(last=5)
        id = authenticating(link)
        got = link.entries_available(9, 0.1) + link.ping_received(0.2) + link.time_passed(0.3)
        got += link.frame_received(welcome(id, 0, FRESH), 0.4)
        self.assertEqual([store.token for store in only(StoreToken, got)], [FRESH])
        got += link.adopted(0, 9, 0.5) + link.time_passed(9.0)
        self.assertEqual(sent(got), [])
        self.assertTrue(only(ReadBatch, link.token_stored(9.1)))

    def test_f42_unknown_members_and_binary(self) -> None:
        """Unknown members of a HelloResult are tolerated and said; binary closes with 1003."""
        link = make()
        got = link.frame_received(welcome(authenticating(link), 0, novel=1), 0.0)
        self.assertTrue(any("novel" in say.text for say in only(Say, got)))
        link.adopted(0, 0, 0.0)
        self.assertEqual(only(Close, link.binary_received(1.0))[0].code, 1003)

    def test_f42_after_revoked_the_process_idles(self) -> None:
        """It stays, connects no more, and its state says so."""
        link = make()
        activate(link)
        params = {"reason": "Revoked", "drain_seconds": 0}
        link.frame_received(message(method="agent.shutdown", params=params), 1.0)
        link.peer_lost("4002", 1.0)
        self.assertEqual((only(Connect, link.time_passed(1e7)), link.state), ([], "revoked"))


class Own(SynchronousTestCase):
    def test_f37_reports_are_entries_of_the_schema(self) -> None:
        """What only the agent knows travels as entries of custom:cortextx."""
        body = refusal_reported(LeftOut("file", "/etc/shadow", "server", "not covered"), NOW)
        found = on_the_wire(body)
        self.assertEqual(schemas.faults(schemas.ENTRY, found), [])
        self.assertEqual(found["source"], "custom:cortextx")
        self.assertEqual(msgspec.json.decode(b'{"seq":1,' + body, type=LogEntry).seq, 1)
