"""The server's session machine: inputs and the exact actions they answer (§2–§5)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from cortextx.errors import StoreFull
from cortextx.fleet.contract import CloseCode, Code
from cortextx.fleet.server import session as module
from cortextx.fleet.server.actions import (
    Action,
    Beat,
    Close,
    Ingest,
    Judge,
    Measure,
    Opened,
    PauseReading,
    Ping,
    ResumeReading,
    Send,
    SetDeadline,
    Warn,
)
from cortextx.fleet.server.hello import version_key
from cortextx.fleet.server.samples import MAX_PENDING
from cortextx.fleet.server.session import ServerSession
from cortextx.fleet.server.tokens import AUTH_FAILED, REVOKED, Accepted
from cortextx.interfaces.fleet import Appended
from tests.fleet.session_case import (
    HELLO,
    HOST,
    SESSION,
    WALL,
    SessionCase,
    call,
    entry,
    hello,
    note,
    plain,
    push,
    sent,
    text,
)


class HelloTests(SessionCase):
    """§3, F3, F4, F28."""

    def test_a_hello_is_judged_and_answered(self) -> None:
        self.assertEqual(self.session.opened(95.0), [SetDeadline(100.0)])
        judge, *rest = self.receive(hello(), 96.0)
        assert isinstance(judge, Judge)
        self.assertEqual((judge.hello.host_id, judge.hello.resume_from_seq), (HOST, 41))
        self.assertEqual(rest, [PauseReading(), SetDeadline(None)])
        answer = self.session.hello_judged(
            Accepted(HOST, 42, SESSION, rotated_token="t" * 43), 97.0, WALL
        )
        self.assertEqual(answer[0], Opened(HOST, SESSION))
        result = sent(answer[1])["result"]
        self.assertEqual(
            {name: result[name] for name in result if name != "config"},
            {
                "server_version": "0.1.0",
                "server_time": "2026-05-16T12:00:00Z",
                "accepted_seq": 42,
                "session_id": SESSION,
                "rotated_token": "t" * 43,
            },
        )
        self.assertEqual(result["config"]["heartbeat_interval_secs"], 30)
        self.assertEqual(answer[2:], [ResumeReading(), SetDeadline(117.0)])

    def test_without_a_rotation_there_is_no_rotated_token(self) -> None:
        self.receive(hello())
        answer = self.session.hello_judged(Accepted(HOST, 42, SESSION), 97.0, WALL)
        self.assertNotIn("rotated_token", sent(answer[1])["result"])

    def test_a_refused_hello_gets_one_error_and_the_close(self) -> None:
        """F4, F5, F8."""
        for verdict, code, close, data in (
            (AUTH_FAILED, -32001, CloseCode.AUTH_FAILED, {"reason": "token_hash_mismatch"}),
            (REVOKED, -32002, CloseCode.TOKEN_REVOKED, None),
        ):
            self.session = self.make()
            self.receive(hello())
            answer = self.session.hello_judged(verdict, 97.0, WALL)
            self.assertEqual(plain(answer)[0], (1, code, data))
            self.assertEqual(len([a for a in answer if isinstance(a, Send)]), 1)
            self.closed(answer, close)

    def test_a_bad_first_message_gets_one_error_and_4001(self) -> None:
        """F4: whatever is wrong with it."""
        no_token = {name: value for name, value in HELLO.items() if name != "token"}
        for payload, id, code in (
            (b"{", None, Code.PARSE_ERROR),
            (b"[]", None, Code.INVALID_REQUEST),
            (text({"jsonrpc": "2.0", "id": None, "method": "agent.hello"}), None, -32600),
            (note("agent.hello", HELLO), None, Code.INVALID_REQUEST),
            (push(7, 1, 2), 7, Code.AUTH_REQUIRED),
            (call("x", "no.such", {}), "x", Code.AUTH_REQUIRED),
            (note("agent.heartbeat", {}), None, Code.AUTH_REQUIRED),
            (text({"jsonrpc": "2.0", "id": 1, "result": {}}), None, Code.AUTH_REQUIRED),
            (call(1, "agent.hello", no_token), 1, Code.INVALID_PARAMS),
            (call(1, "agent.hello", []), 1, Code.INVALID_PARAMS),
            (text({"jsonrpc": "2.0", "id": 1, "method": "agent.hello"}), 1, -32602),
            (hello(extra=1), 1, Code.INVALID_PARAMS),
            (hello(host_id="nobody"), 1, Code.INVALID_PARAMS),
            (hello(host_id=HOST + "\n"), 1, Code.INVALID_PARAMS),
            (hello(token="short"), 1, Code.INVALID_PARAMS),
            (hello(agent_version="1.0"), 1, Code.INVALID_PARAMS),
            (hello(resume_from_seq=-1), 1, Code.INVALID_PARAMS),
        ):
            self.session = self.make()
            answer = self.receive(payload)
            self.assertEqual(plain(answer)[0][:2], (id, code), payload)
            self.closed(answer, CloseCode.AUTH_FAILED)

    def test_versions_come_before_the_rest_of_the_schema(self) -> None:
        """F28."""
        for version in (0, 2, -1, 2**70):
            self.session = self.make()
            answer = self.receive(call(1, "agent.hello", {"protocol_version": version}))
            self.assertEqual(plain(answer)[0][:2], (1, -32003))
            self.assertEqual(plain(answer)[0][2]["required_protocol_version"], 1)
            self.closed(answer, CloseCode.AUTH_FAILED)
        for version in ("1", True, None, 1.5):
            self.session = self.make()
            answer = self.receive(hello(protocol_version=version))
            self.assertEqual(plain(answer)[0][:2], (1, -32602), version)

    def test_an_agent_below_the_floor_is_unsupported(self) -> None:
        """F28: as semver, build metadata ignored."""
        for version, good in (
            ("0.1.0", True), ("0.1.0+build", True), ("0.10.0", True), ("1.0.0-rc.1", True),
            ("0.0.9", False), ("0.1.0-rc.1", False), ("0.1.0-rc.1+b", False),
        ):  # fmt: skip
            self.session = self.make()
            answer = self.receive(hello(agent_version=version))
            if good:
                self.assertIsInstance(answer[0], Judge, version)
            else:
                self.assertEqual(plain(answer)[0], (1, -32003, {"min_agent_version": "0.1.0"}))

    def test_versions_are_ordered_as_semver_says(self) -> None:
        """semver 2.0.0 §11; a number of any length costs nothing."""
        ordered = [
            "0.9.9", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta",
            "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1", "1.0.0", "1.0.1", "1.2.0", "1.10.0",
            "9" * 6000 + ".0.0",
        ]  # fmt: skip
        keys = [version_key(version) for version in ordered]
        self.assertEqual(keys, sorted(keys))
        self.assertEqual(len(set(keys)), len(keys))
        self.assertEqual(version_key("1.0.0+a"), version_key("1.0.0+b"))

    def test_a_host_id_is_compared_in_lower_case(self) -> None:
        judge = self.receive(hello(host_id=HOST.upper()))[0]
        assert isinstance(judge, Judge)
        self.assertEqual(judge.hello.host_id, HOST)

    def test_nul_in_a_hellos_text_becomes_a_replacement_character(self) -> None:
        """F16; an escaped backslash before u0000 is no NUL."""
        judge = self.receive(hello(hostname="a\x00b\\u0000"))[0]
        assert isinstance(judge, Judge)
        self.assertEqual(judge.hello.hostname, "a\ufffdb\\u0000")

    def test_the_timer_closes_without_a_message(self) -> None:
        """§3, F4."""
        self.session.opened(10.0)
        self.assertEqual(self.session.time_passed(14.9), [SetDeadline(15.0)])
        answer = self.session.time_passed(15.0)
        self.assertEqual([type(action) for action in answer], [Close])
        self.closed(answer, CloseCode.HANDSHAKE_TIMEOUT)

    def test_the_bytes_before_the_hello_are_counted(self) -> None:
        """F3: 1 KiB beside the payload, 64 KiB of payload."""
        self.assertEqual(self.session.wire_counted(1024, 65_536), [])
        self.closed(self.session.wire_counted(1025, 0), CloseCode.TOO_BIG, "1009 oversize")
        self.session = self.make()
        self.closed(self.session.wire_counted(0, 65_537), CloseCode.TOO_BIG)
        self.session = self.make(hello_max_bytes=2048)
        self.closed(self.receive(hello(hostname="x" * 2000)), CloseCode.TOO_BIG)

    def test_nothing_is_counted_once_the_hello_is_complete(self) -> None:
        self.receive(hello())
        self.assertEqual(self.session.wire_counted(5000, 100_000), [])

    def test_frames_behind_a_hello_are_handled_after_it_in_order(self) -> None:
        """F30."""
        self.receive(hello())
        for payload in (push(2, 1, 2), hello(), call(3, "no.such", {}), push(4, 3, 4)):
            self.assertEqual(self.receive(payload), [])
        self.assertEqual(self.session.binary_received(), [])
        answer = plain(self.session.hello_judged(Accepted(HOST, 0, SESSION), 97.0, WALL))
        self.assertEqual(answer[0], Opened(HOST, SESSION))
        self.assertEqual(answer[1][0], 1)
        rest = [a for a in answer[2:] if not isinstance(a, SetDeadline | ResumeReading)]
        self.assertEqual([type(a) for a in rest], [Ingest, tuple, tuple, Ingest, Close])
        self.assertEqual([a[:2] for a in rest[1:3]], [(1, -32600), (3, -32601)])
        self.assertEqual(rest[4].code, CloseCode.BINARY_FRAME)

    def test_frames_behind_a_refused_hello_are_dropped(self) -> None:
        self.receive(hello())
        self.receive(push(2, 1, 2))
        answer = self.session.hello_judged(AUTH_FAILED, 97.0, WALL)
        self.assertEqual([a for a in answer if isinstance(a, Ingest)], [])
        self.closed(answer, CloseCode.AUTH_FAILED)

    def test_what_is_held_behind_a_hello_is_bounded(self) -> None:
        self.receive(hello())
        for _ in range(module.MAX_HELD):
            self.assertEqual(self.receive(b"{}"), [])
        self.closed(self.receive(b"{}"), CloseCode.TOO_BIG)
        self.session = self.make()
        self.receive(hello())
        self.receive(b" " * 1_048_576)
        self.receive(b" " * 1_048_576)
        self.closed(self.receive(b" "), CloseCode.TOO_BIG)

    def test_a_verdict_that_comes_too_late_opens_nothing(self) -> None:
        self.receive(hello())
        self.session.peer_lost()
        self.assertEqual(self.session.hello_judged(Accepted(HOST, 0, SESSION), 1.0, WALL), [])

    def test_the_token_shows_in_no_action(self) -> None:
        """F23."""
        shown = repr(self.receive(hello()))
        shown += repr(self.session.hello_judged(Accepted(HOST, 0, SESSION, "r" * 43), 1.0, WALL))
        shown += repr(self.make().text_received(hello(extra=HELLO["token"]), 1.0, WALL))
        self.assertNotIn(HELLO["token"], shown)
        self.assertNotIn("r" * 43, shown)
        answer = self.make().text_received(hello(host_id=HELLO["token"]), 1.0, WALL)
        self.assertNotIn(HELLO["token"].encode(), answer[0].payload)  # type: ignore[union-attr]


class FrameTests(SessionCase):
    """§2, F9: what ends a connection."""

    def test_fatal_frames(self) -> None:
        big = b" " * 1_048_577
        for act, code in (
            (lambda s: s.binary_received(), CloseCode.BINARY_FRAME),
            (lambda s: s.not_utf8(), CloseCode.NOT_UTF8),
            (lambda s: s.too_big(), CloseCode.TOO_BIG),
            (lambda s: s.text_received(big, 1.0, WALL), CloseCode.TOO_BIG),
            (lambda s: s.text_received(b'{"a":"\xff"}', 1.0, WALL), CloseCode.NOT_UTF8),
            (lambda s: s.text_received(b'"\xed\xa0\x80"', 1.0, WALL), CloseCode.NOT_UTF8),
        ):
            self.session = self.make()
            self.closed(act(self.session), code)
            self.closed(act(self.active()), code)

    def test_a_closed_session_ignores_everything(self) -> None:
        session = self.active()
        ingest = self.ingested(self.receive(push(5, 1, 2)))
        session.binary_received()
        for answer in (
            session.binary_received(), session.too_big(), session.not_utf8(), session.revoked(),
            session.superseded(), session.shut_down("ServerReload", 5, 1.0),
            session.time_passed(1e9), session.peer_lost(), session.pong_received(b"", 1.0),
            session.stored(ingest.key, Appended(2, 2), 1.0, WALL), session.wire_counted(9999, 0),
            session.not_stored(ingest.key, StoreFull(""), 1.0),
        ):  # fmt: skip
            self.assertEqual(answer, [])


class MessageTests(SessionCase):
    """F9, F30: after the handshake."""

    def test_faults_of_the_envelope_are_answered_and_the_session_lives(self) -> None:
        self.active()
        for payload, id, code in (
            (b"{", None, Code.PARSE_ERROR),
            (b'{"jsonrpc":"2.0","id":1,"method":"x","params":"\\ud800"}', None, -32700),
            (b"[]", None, Code.INVALID_REQUEST),
            (b"[" + push(1, 1, 2) + b"]", None, Code.INVALID_REQUEST),
            (text({"jsonrpc": "2.0", "id": None, "method": "metrics.push"}), None, -32600),
            (text({"id": 3, "method": "agent.heartbeat"}), 3, Code.INVALID_REQUEST),
            (hello(), 1, Code.INVALID_REQUEST),
            (call(2, "agent.heartbeat", {}), 2, Code.INVALID_REQUEST),
            (call(2, "no.such", {}), 2, Code.METHOD_NOT_FOUND),
            (call(2, "probe.request", {}), 2, Code.METHOD_NOT_FOUND),
        ):
            (answer,) = plain(self.receive(payload))
            self.assertEqual(answer[:2], (id, code), payload)
        self.assertEqual(self.session.state, "active")

    def test_notifications_and_answers_to_nothing_are_dropped(self) -> None:
        self.active()
        for payload in (
            note("no.such", {}),
            note("logs.push", {"seq_start": 1, "entries": [entry(1)]}),
            note("agent.hello", HELLO),
            note("agent.heartbeat", {"ts": "now"}),
            text({"jsonrpc": "2.0", "id": 5, "result": {}}),
            text({"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": ""}}),
        ):
            self.assertEqual([type(a) for a in self.receive(payload)], [Warn], payload)

    def test_a_peers_faults_do_not_fill_the_log(self) -> None:
        self.active()
        warnings = [a for _ in range(200) for a in self.receive(note("no.such", {}))]
        self.assertEqual(len(warnings), module.MAX_WARNINGS)

    def test_a_heartbeat_is_passed_on(self) -> None:
        """§4.2."""
        self.active()
        (beat,) = self.receive(
            note(
                "agent.heartbeat",
                {"ts": "2026-05-16T12:00:00Z", "queue_depth": 17, "buffer_bytes": 4096},
            )
        )
        assert isinstance(beat, Beat)
        self.assertEqual((beat.heartbeat.queue_depth, beat.heartbeat.buffer_bytes), (17, 4096))
        self.assertEqual(beat.heartbeat.ts, datetime(2026, 5, 16, 12, tzinfo=UTC))

    def test_metrics_are_checked(self) -> None:
        """§4.5, F9: too many samples come before any other fault; none of a bad push is kept."""
        self.active()
        sample = {"name": "load1", "value": 0.4}

        def refused(samples: list[Any]) -> Any:
            params = {"ts": "2026-05-16T12:00:00Z", "samples": samples}
            [answer] = plain(self.receive(call(5, "metrics.push", params)))
            return answer[1]

        self.assertEqual(refused([sample] * 513), -32008)
        self.assertEqual(refused([{"bad": 1}] * 513), -32008)
        self.assertEqual(refused([]), -32602)
        self.assertEqual(refused([{"name": "", "value": 1}]), -32602)
        self.assertEqual(refused([sample, sample | {"labels": {"a": 1}}]), -32602)
        self.assertEqual(self.gauge.used, 0)

    def measure(self, id: int = 5) -> list[Action]:
        samples = [{"name": "a\x00", "value": 1, "labels": {"b": "c\x00"}}]
        params = {"ts": "2026-05-16T12:00:00Z", "samples": samples}
        return self.receive(call(id, "metrics.push", params))

    def test_metrics_are_answered_once_they_are_stored(self) -> None:
        """F24: with how many were stored and how many not; NUL in them is U+FFFD (F16)."""
        session = self.active()
        [measure] = self.measure()
        assert isinstance(measure, Measure)
        self.assertEqual((measure.host_id, self.gauge.used), (HOST, measure.size))
        [sample] = measure.metrics.samples
        self.assertEqual((sample.name, sample.labels), ("a\ufffd", {"b": "c\ufffd"}))
        answer = plain(session.measured(measure.key, (1, 0)))
        self.assertEqual(answer, [(5, {"accepted": 1, "dropped": 0})])
        self.assertEqual(session.measured(measure.key, (1, 0)), [])

    def test_metrics_that_could_not_be_stored_are_put_off(self) -> None:
        """A full disk is -32020 with a pause, any other failure -32603 without its words."""
        session = self.active()
        for error, code, data in (
            (StoreFull("x"), -32020, {"retry_after_ms": 5000}),
            (RuntimeError("secret"), -32603, None),
        ):
            [measure] = self.measure()
            assert isinstance(measure, Measure)
            self.assertEqual(plain(session.measured(measure.key, error)), [(5, code, data)])

    def test_metrics_wait_within_bounds(self) -> None:
        """Where a host's samples pile up, or all hosts' pushes do, they are put off (§4.5)."""
        self.active()
        for id in range(MAX_PENDING):
            self.measure(id)
        refusal = (9, -32020, {"retry_after_ms": 250})
        self.assertEqual(plain(self.measure(9)), [refusal])
        self.active()
        self.gauge.reserve(self.gauge.soft - self.gauge.used)
        self.assertEqual(plain(self.measure(9)), [refusal])

    def test_metrics_hold_no_logs_up(self) -> None:
        """A refused metrics.push makes no later logs.push refused (F33 is for logs)."""
        self.active()
        for id in range(MAX_PENDING + 1):
            self.measure(id)
        self.ingested(self.receive(push(20, 7, 9)))


class TimeTests(SessionCase):
    """§2, F21: liveness; §4.3, F8, F14: the end."""

    def test_three_unanswered_pings_end_the_connection(self) -> None:
        session = self.active()
        for at in (120.0, 140.0, 160.0):
            ping, deadline = session.time_passed(at)
            self.assertIsInstance(ping, Ping)
            self.assertEqual(deadline, SetDeadline(at + 20.0))
        self.closed(session.time_passed(180.0), CloseCode.INTERNAL_ERROR, "1011 missed pongs")

    def test_only_a_pong_is_a_sign_of_life(self) -> None:
        session = self.active()
        for at in range(120, 400, 20):
            ping = session.time_passed(float(at))[0]
            assert isinstance(ping, Ping)
            session.pong_received(ping.payload, at + 1.0)
        for at in (400.0, 420.0, 440.0):
            session.time_passed(at)
            self.receive(note("agent.heartbeat", {}), at)
            session.pong_received(b"x", at)
        self.closed(session.time_passed(460.0), CloseCode.INTERNAL_ERROR)

    def test_pongs_that_we_do_not_read_are_not_missed(self) -> None:
        session = self.active(max_pending=1)
        self.receive(push(1, 1, 1))
        for at in range(120, 400, 20):
            self.assertEqual(session.time_passed(float(at))[0], Ping(b"paused"))
        self.assertEqual(session.state, "active")

    def test_an_early_call_sets_the_deadline_again(self) -> None:
        self.assertEqual(self.active().time_passed(110.0), [SetDeadline(120.0)])

    def test_a_shutdown_drains_and_closes(self) -> None:
        """§4.3: pushes are taken and acked until the drain ends."""
        session = self.active()
        answer = session.shut_down("ServerReload", 5, 101.0)
        self.assertEqual(
            plain(answer),
            [
                ("agent.shutdown", {"reason": "ServerReload", "drain_seconds": 5}),
                SetDeadline(106.0),
            ],
        )
        self.assertEqual(session.state, "draining")
        ingest = self.ingested(self.receive(push(1, 1, 2)))
        self.assertEqual(len(session.stored(ingest.key, Appended(2, 2), 102.0, WALL)), 1)
        self.closed(session.time_passed(106.0), CloseCode.NORMAL)

    def test_a_second_shutdown_can_only_be_sooner(self) -> None:
        session = self.active()
        session.shut_down("ServerReload", 10, 101.0)
        self.assertEqual(session.shut_down("Decommission", 2, 101.0)[1:], [SetDeadline(103.0)])
        self.assertEqual(session.shut_down("ServerReload", 9, 101.0)[1:], [])

    def test_a_shutdown_without_a_drain_closes_at_once(self) -> None:
        session = self.active()
        answer = session.shut_down("Decommission", 0, 101.0)
        self.assertEqual(plain(answer)[0][0], "agent.shutdown")
        self.closed(answer, CloseCode.NORMAL, "1000 Decommission")
        self.closed(self.make_waiting().shut_down("ServerReload", 9, 1.0), CloseCode.NORMAL)

    def make_waiting(self) -> ServerSession:
        self.session = self.make()
        self.receive(hello())
        return self.session

    def test_a_revoked_host_is_told_and_cut(self) -> None:
        """F8."""
        answer = self.active().revoked()
        self.assertEqual(
            plain(answer)[0], ("agent.shutdown", {"reason": "Revoked", "drain_seconds": 0})
        )
        self.closed(answer, CloseCode.TOKEN_REVOKED, "4002 revoked")
        answer = self.make_waiting().revoked()
        self.assertEqual(plain(answer)[0], (1, -32002, None))
        self.closed(answer, CloseCode.TOKEN_REVOKED)

    def test_a_superseded_session_closes_normally(self) -> None:
        """F14."""
        answer = self.active().superseded()
        self.assertEqual(
            answer, [SetDeadline(None), Close(CloseCode.NORMAL, "superseded", "1000 superseded")]
        )

    def test_a_close_leaves_reading_on(self) -> None:
        """The peer's own close must be seen."""
        session = self.active(max_pending=1)
        self.receive(push(1, 1, 1))
        answer = session.superseded()
        self.assertEqual(answer[0], ResumeReading())
        self.assertIsInstance(answer[-1], Close)
