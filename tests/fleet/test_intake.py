"""A session's pushes: checks, acks, refusals, and an agent against a server (§4.4, F33)."""

from __future__ import annotations

import json
import random
from collections import deque
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.budgets import Gauge
from cortextx.core.delivery import Outbox
from cortextx.errors import StoreError, StoreFull
from cortextx.fleet import jsonrpc
from cortextx.fleet.contract import Code, HelloParams
from cortextx.fleet.server.actions import (
    Action,
    Ingest,
    Judge,
    PauseReading,
    Ping,
    ResumeReading,
    Send,
)
from cortextx.fleet.server.session import ServerSession, SessionSettings
from cortextx.fleet.server.tokens import Accepted
from cortextx.interfaces.fleet import Appended, EntryFilter
from cortextx.testing.stores import ScriptedStore
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


class PushTests(SessionCase):
    """§4.4, F9–F16, F33."""

    def test_a_push_is_given_to_the_store_and_acked_when_durable(self) -> None:
        """F10, F11."""
        session = self.active()
        payload = push("p", 1, 3)
        ingest = self.ingested(self.receive(payload))
        batch = ingest.batch
        self.assertEqual((batch.host_id, batch.seq_start, batch.last), (HOST, 1, 3))
        self.assertEqual((batch.received_at, batch.size), (WALL, len(payload)))
        self.assertEqual([e.message for e in batch.entries], ["m1", "m2", "m3"])
        self.assertEqual(session.pending, 1)
        answer = session.stored(ingest.key, Appended(7, 3), 101.0, WALL + 5)
        self.assertEqual(
            plain(answer), [("p", {"up_to_seq": 7, "received_at": "2026-05-16T12:00:00Z"})]
        )
        self.assertEqual(session.pending, 0)

    def test_a_pushs_bytes_are_reserved_for_whoever_stores_it(self) -> None:
        self.active()
        payload = push("p", 1, 3)
        batch = self.ingested(self.receive(payload)).batch
        self.assertEqual((self.gauge.used, batch.size), (len(payload), len(payload)))

    def test_an_ack_keeps_the_id_as_it_came(self) -> None:
        session = self.active()
        for id in ("", 0, -7, 1.5, "ü"):
            ingest = self.ingested(self.receive(push(id, 1, 1)))
            (answer,) = session.stored(ingest.key, Appended(1, 1), 1.0, WALL)
            self.assertEqual(sent(answer)["id"], id)

    def test_schema_faults_refuse_the_batch_whole(self) -> None:
        """F9, F12, F15, F31, F32: -32602 with the field."""
        for members, field in (
            ({"ts": "2026-05-16T12:00:00"}, "ts"),
            ({"ts": 5}, "ts"),
            ({"ts": "yesterday"}, "ts"),
            ({"severity": "warn"}, "severity"),
            ({"severity": None}, "severity"),
            ({"message": "x" * 65_537}, "message"),
            ({"message": None}, "message"),
            ({"source": "nowhere"}, "source"),
            ({"source": "file:"}, "source"),
            ({"source": "file:/a\nb"}, "source"),
            ({"source": "journald\n"}, "source"),
            ({"source": "file:/a\x00b"}, "source"),
            ({"metadata": []}, "metadata"),
            ({"metadata": "x"}, "metadata"),
            ({"metadata": False}, "metadata"),
            ({"facility": 1}, "facility"),
            ({"extra": 1}, ""),
            ({"seq": 2**63}, "seq"),
            ({"seq": -1}, "seq"),
            ({"seq": "2"}, "seq"),
            ({"seq": 3}, "seq"),
        ):
            self.active()
            entries = [entry(1), entry(2) | members, entry(3)]
            answer = self.receive(call(5, "logs.push", {"seq_start": 1, "entries": entries}))
            self.refused(answer, 5, Code.INVALID_PARAMS)
            self.assertIn(field, plain(answer)[0][2]["field"], members)
            self.assertEqual(self.gauge.used, 0)

    def test_metadata_must_decode_again(self) -> None:
        """What is kept as text: no number out of range, no bottomless nesting."""
        for metadata, good in (
            (b"null", True),
            (b"{}", True),
            (b'{"a":1e308}', True),
            (b'{"a":1e400}', False),
            (b'{"a":' + b"[" * 99 + b"]" * 99 + b"}", True),
            (b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", False),
            (b'{"a":"' + b"[{" * 300 + b'"}', True),
        ):
            self.active()
            body = b'"ts":"2026-05-16T12:00:00Z","severity":"info","message":"","source":"journald"'
            others = b",".join(b'{"seq":%d,"metadata":null,%s}' % (n, body) for n in range(2, 400))
            payload = (
                b'{"jsonrpc":"2.0","id":5,"method":"logs.push","params":{"seq_start":1,"entries":['
                b'{"seq":1,"metadata":%s,%s},%s]}}' % (metadata, body, others)
            )
            answer = self.receive(payload)
            if good:
                batch = self.ingested(answer).batch
                self.assertEqual(bytes(batch.entries[0].metadata), metadata)
            else:
                self.refused(answer, 5, Code.INVALID_PARAMS)

    def test_too_many_entries_come_before_other_faults(self) -> None:
        """F9: -32008."""
        for entries in ([entry(n) for n in range(1, 1002)], [{"bad": 1}] * 1001, [None] * 5000):
            self.active()
            answer = self.receive(call(5, "logs.push", {"seq_start": 1, "entries": entries}))
            self.refused(answer, 5, Code.PAYLOAD_TOO_LARGE)
        self.active()
        self.ingested(self.receive(push(5, 1, 1000)))

    def test_params_of_the_wrong_shape(self) -> None:
        for params in (None, [], {}, {"seq_start": 1}, {"seq_start": 1, "entries": []},
                       {"entries": [entry(1)]}, {"seq_start": "1", "entries": [entry(1)]},
                       {"seq_start": 1, "entries": [entry(1)], "more": 1},
                       {"seq_start": 2, "entries": [entry(1)]},
                       {"seq_start": 1, "entries": {}}):  # fmt: skip
            self.active()
            answer = self.receive(call(5, "logs.push", params))
            self.refused(answer, 5, Code.INVALID_PARAMS)

    def test_nul_is_stored_as_a_replacement_character(self) -> None:
        """F16: in every text of an entry, in metadata too, and only where there is one."""
        self.active()
        members = {
            "message": "a\x00\x00b\\u0000",
            "app_name": "\x00",
            "process_id": "1\x00",
            "facility": "f\x00",
            "metadata": {"k\x00": "v\x00\\\x00", "b": "\\u0000"},
        }
        payload = call(5, "logs.push", {"seq_start": 1, "entries": [entry(1, **members), entry(2)]})
        first, second = self.ingested(self.receive(payload)).batch.entries
        self.assertEqual(first.message, "a\ufffd\ufffdb\\u0000")
        self.assertEqual(
            (first.app_name, first.process_id, first.facility), ("\ufffd", "1\ufffd", "f\ufffd")
        )
        self.assertEqual(
            json.loads(bytes(first.metadata)), {"k\ufffd": "v\ufffd\\\ufffd", "b": "\\u0000"}
        )
        self.assertEqual(second.message, "m2")

    def test_the_offset_of_a_ts_is_kept(self) -> None:
        """F15."""
        self.active()
        (first,) = self.ingested(self.receive(push(5, 1, 1))).batch.entries
        self.assertEqual(first.ts.isoformat(), "2026-05-16T14:00:00+02:00")

    def test_a_full_queue_pushes_back(self) -> None:
        """F9: beyond the soft mark -32020, beyond the hard one -32007."""
        size = len(push(1, 1, 10))
        self.gauge = Gauge(size, size + size // 2)
        self.active(retry_after_ms=250)
        self.ingested(self.receive(push(1, 1, 10)))
        self.refused(
            self.receive(push(2, 11, 11)), 2, Code.BACKPRESSURE,
            retry_after_ms=250, resend_from=None,
        )  # fmt: skip
        self.gauge.release(self.gauge.used)
        self.ingested(self.receive(push(3, 1, 10)))
        self.refused(self.receive(push(4, 11, 40)), 4, Code.BUFFER_OVERFLOW, retry_after_ms=250)
        self.assertEqual(self.gauge.used, size)

    def test_what_the_store_could_not_do_is_refused(self) -> None:
        """StoreFull -32020, other errors -32603, a host that has gone -32004 (F5)."""
        for error, code in (
            (StoreFull("disk"), Code.BACKPRESSURE),
            (StoreError("secret"), Code.INTERNAL_ERROR),
            (ValueError("secret"), Code.INTERNAL_ERROR),
        ):
            session = self.active()
            ingest = self.ingested(self.receive(push(1, 1, 2)))
            answer = session.not_stored(ingest.key, error, 1.0)
            self.refused(answer, 1, code)
            self.assertNotIn(b"secret", answer[0].payload)  # type: ignore[union-attr]
            self.refused(self.receive(push(2, 3, 4)), 2, Code.BACKPRESSURE, resend_from=1)
        session = self.active()
        ingest = self.ingested(self.receive(push(1, 1, 2)))
        gone = Appended(0, 0, unknown_host=True)
        self.refused(session.stored(ingest.key, gone, 1.0, WALL), 1, Code.UNKNOWN_HOST)

    def test_reading_pauses_while_much_waits_for_the_store(self) -> None:
        session = self.active(max_pending=2)
        first = self.ingested(self.receive(push(1, 1, 1)))
        second, pause = self.receive(push(2, 2, 2))
        self.assertEqual(pause, PauseReading())
        answer = session.stored(first.key, Appended(1, 1), 1.0, WALL)
        self.assertEqual(answer[1:], [ResumeReading()])
        self.assertIsInstance(second, Ingest)


class RefusalTests(SessionCase):
    """F33: a refusal never turns into loss."""

    def bad(self, id: Any, first: int) -> bytes:
        return push(id, first, first + 1, severity="loud")

    def test_after_a_refusal_what_follows_is_refused_until_the_agent_goes_back(self) -> None:
        self.active()
        self.refused(self.receive(self.bad(1, 5)), 1, Code.INVALID_PARAMS)
        for id, first in ((2, 7), (3, 6), (4, 100)):
            answer = self.receive(push(id, first, first))
            self.refused(answer, id, Code.BACKPRESSURE, resend_from=5, retry_after_ms=250)
        self.ingested(self.receive(push(5, 5, 6)))
        self.ingested(self.receive(push(6, 7, 8)))

    def test_the_pong_to_the_newest_fence_ends_it_and_no_other_pong_does(self) -> None:
        session = self.active()
        old = self.refused(self.receive(self.bad(1, 5)), 1, Code.INVALID_PARAMS)
        new = self.refused(self.receive(push(2, 7, 8)), 2, Code.BACKPRESSURE)
        for payload in (old, b"", b"fence:", b"fence:99", b"fence:\xb2", b"alive:1", new + b"0"):
            self.assertEqual(session.pong_received(payload, 1.0), [])
            new = self.refused(self.receive(push(3, 7, 8)), 3, Code.BACKPRESSURE)
        session.pong_received(new, 1.0)
        self.ingested(self.receive(push(4, 7, 8)))

    def test_a_refusal_whose_seq_cannot_be_read_counts_from_what_is_owed(self) -> None:
        for params in ({"seq_start": "x"}, {}, [], None, {"seq_start": 2**64, "entries": [1]}):
            session = self.active(accepted_seq=10)
            ingest = self.ingested(self.receive(push(1, 11, 12)))
            session.stored(ingest.key, Appended(12, 2), 1.0, WALL)
            self.refused(self.receive(call(2, "logs.push", params)), 2, Code.INVALID_PARAMS)
            self.refused(self.receive(push(3, 14, 15)), 3, Code.BACKPRESSURE, resend_from=13)
            self.ingested(self.receive(push(4, 13, 15)))

    def test_the_lowest_readable_seq_of_a_contradictory_push_counts(self) -> None:
        """F12: seq_start and the first entry's seq differ."""
        for start, seq in ((5, 9), (9, 5)):
            self.active()
            self.receive(call(1, "logs.push", {"seq_start": start, "entries": [entry(seq)]}))
            self.refused(self.receive(push(2, 6, 6)), 2, Code.BACKPRESSURE, resend_from=5)

    def test_what_cannot_be_read_at_all_may_have_been_a_push(self) -> None:
        """Without an id there is no fence: the agent may not know what was refused."""
        for payload in (
            b'{"jsonrpc":"2.0","id":1,"method":"logs.push","par',
            b"[]",
            text({"jsonrpc": "2.0", "id": None, "method": "logs.push", "params": {}}),
        ):
            session = self.active(accepted_seq=4)
            (answer,) = self.receive(payload)
            self.assertIn(sent(answer)["error"]["code"], (-32700, -32600))
            fence = self.refused(self.receive(push(2, 7, 8)), 2, Code.BACKPRESSURE, resend_from=5)
            session.pong_received(fence, 1.0)
            self.ingested(self.receive(push(3, 7, 8)))

    def test_other_refused_calls_hold_no_push_up(self) -> None:
        self.active()
        for payload in (
            call(1, "no.such", {}),
            hello(),
            call(1, "metrics.push", {}),
            text({"jsonrpc": "2.0", "id": None, "method": "metrics.push"}),
        ):
            self.receive(payload)
        self.ingested(self.receive(push(2, 7, 8)))


class Wire:
    """An agent's Outbox against a ServerSession and a store, all delays at random."""

    def __init__(self, seed: int, window: int, trouble: float) -> None:
        self.chance = random.Random(seed)
        self.trouble = trouble
        self.store = ScriptedStore()
        self.store.issue("h", HOST, b"t" * 32, 0, 0)
        self.gauge = Gauge(4_000, 6_000)
        self.session = ServerSession(SessionSettings(server_version="0", max_pending=3), self.gauge)
        self.session.text_received(hello(), 0.0, WALL)
        self.session.hello_judged(Accepted(HOST, 0, SESSION), 0.0, WALL)
        self.outbox = Outbox(0, window)
        self.up: deque[tuple[str, Any]] = deque()
        self.down: deque[Action] = deque()
        self.writing: deque[Ingest] = deque()
        self.paused = False
        self.key = 0

    def push(self, total: int) -> None:
        first = self.outbox.next_first
        last = min(total, first + self.chance.randint(0, 4))
        self.key += 1
        self.outbox.sent(self.key, first, last, 100)
        payload = push(self.key, first, last)
        if self.chance.random() < self.trouble / 2:
            # Some of what an agent may get wrong; it sends it right the next time.
            spoil = self.chance.choice(
                [(b'"info"', b'"loud"'), (b'"seq_start"', b'"seq_begin"'), (b'"entries"', b'"e"'),
                 (b'"2.0"', b'"2.1"'), (b'"params"', b'"parms"')]
            )  # fmt: skip
            payload = payload.replace(*spoil)
        self.up.append(("text", payload))

    def carry_out(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Ingest():
                    self.writing.append(action)
                case PauseReading() | ResumeReading():
                    self.paused = isinstance(action, PauseReading)
                case Send() | Ping():
                    self.down.append(action)

    def write(self) -> None:
        """What the ingest writer does with all that waits (F33: one fails, all behind fail)."""
        group, self.writing = list(self.writing), deque()
        if self.chance.random() < self.trouble:
            self.store.fail_next(self.chance.choice([StoreFull(""), StoreError("")]))
        answer = self.store.append([ingest.batch for ingest in group])
        failed: list[Any] = []
        stored: list[Any] = []
        answer.addCallbacks(stored.extend, lambda failure: failed.append(failure.value))
        for at, ingest in enumerate(group):
            self.gauge.release(ingest.batch.size)
            if failed:
                self.carry_out(self.session.not_stored(ingest.key, failed[0], 0.0))
            else:
                self.carry_out(self.session.stored(ingest.key, stored[at], 0.0, WALL))

    def agent_receives(self, total: int) -> None:
        action = self.down.popleft()
        if isinstance(action, Ping):
            self.up.append(("pong", action.payload))
            return
        message = sent(action)
        if "result" in message:
            self.outbox.acknowledged(message["id"], message["result"]["up_to_seq"], total)
        else:
            data = message["error"].get("data") or {}
            self.outbox.refused(message["id"], data.get("resend_from"))

    def run(self, total: int) -> None:
        for _ in range(30_000):
            if self.outbox.acked == total and not self.outbox.in_flight:
                return
            step = self.chance.random()
            if step < 0.35 and self.outbox.may_send() and self.outbox.next_first <= total:
                self.push(total)
            elif step < 0.6 and self.up and not self.paused:
                kind, payload = self.up.popleft()
                if kind == "pong":
                    self.session.pong_received(payload, 0.0)
                else:
                    self.carry_out(self.session.text_received(payload, 0.0, WALL))
            elif step < 0.75 and self.writing:
                self.write()
            elif self.down:
                self.agent_receives(total)
        raise AssertionError(f"stuck at {self.outbox.acked} of {total}")


class ClientAgainstServerTests(SynchronousTestCase):
    """F33 end to end: an agent's outbox, a session and a store under random refusals."""

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, 2**32), st.sampled_from([0.0, 0.1, 0.4]), st.integers(1, 6))
    def test_stored_is_sent_whatever_is_refused(
        self, seed: int, trouble: float, window: int
    ) -> None:
        wire = Wire(seed, window, trouble)
        wire.run(40)
        page = self.successResultOf(wire.store.search(EntryFilter(), 1000, newest_first=False))
        self.assertEqual(sorted(e.seq for e in page.entries), list(range(1, 41)))
        self.assertEqual([e.seq for e in sorted(page.entries, key=lambda e: e.id)],
                         list(range(1, 41)))  # fmt: skip
        self.assertEqual(self.successResultOf(wire.store.gaps()), [])
        self.assertEqual(wire.gauge.used, 0)


class AnyBytesTests(SessionCase):
    """Whatever an authenticated peer sends, the session answers and never raises."""

    @settings(max_examples=150, deadline=None)
    @given(st.data())
    def test_mutilated_messages(self, data: Any) -> None:
        self.active()
        payload = data.draw(
            st.sampled_from([push(1, 1, 3, metadata={"a": [1, "x\x00"]}), hello(),
                             note("agent.heartbeat", {"ts": "2026-05-16T12:00:00Z"})])
        )  # fmt: skip
        at = data.draw(st.integers(0, len(payload)))
        cut = data.draw(st.integers(0, 12))
        noise = data.draw(st.binary(max_size=6))
        answer = self.receive(payload[:at] + noise + payload[at + cut :])
        for action in answer:
            if isinstance(action, Send):
                jsonrpc.parse(action.payload)

    def test_a_hello_of_any_members_is_judged_or_refused(self) -> None:
        chance = random.Random(5)
        values = [None, True, 0, -1, 1e300, "", "x", [], {}, [[]], {"a": 1}, "\x00", 2**80]
        for _ in range(300):
            session = self.make()
            members = HELLO | {chance.choice(list(HELLO)): chance.choice(values)}
            answer = session.text_received(call(1, "agent.hello", members), 1.0, WALL)
            self.assertIsInstance(answer[0], Judge | Send)
            if isinstance(answer[0], Judge):
                self.assertIsInstance(answer[0].hello, HelloParams)
