"""The master's machine against a scripted slave."""

from __future__ import annotations

import msgspec
from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import LocalProtocolError, SessionRefused
from cortextx.interaction import data, v2
from cortextx.interaction.correlation import Correlation
from cortextx.interaction.data import Accepted, Done, Error, Gap, Message
from cortextx.interaction.faults import Code
from cortextx.interaction.master.actions import ATTACH, Connect, RunAccepted
from cortextx.interaction.master.events import Attached, Detached, Disconnected, Opaque, Warned
from tests.interaction.master.script import Script, after_of


class HandshakeTests(SynchronousTestCase):
    def test_the_first_frame_is_a_hello_and_nothing_follows_before_the_welcome(self) -> None:
        """v2, Framing and negotiation: hello first, with the versions that we speak."""
        script = Script(opens=False)
        script.attach()
        script.do(script.machine.connected(0.0))
        self.assertEqual([frame.kind for frame in script.frames], ["hello"])
        hello = data.read(script.frames[0])
        assert isinstance(hello, data.Hello)
        self.assertEqual(hello.versions, (v2.ABI,))
        script.say(script.limits, capabilities=("input",))
        self.assertEqual([frame.kind for frame in script.frames], ["hello", "attach"])

    def test_a_welcome_for_another_connection_id_is_refused(self) -> None:
        """v2: welcome carries the connection_id of the hello."""
        script = Script(opens=False)
        script.do(script.machine.connect())
        script.do(script.machine.connected(0.0))
        frame = data.build(script.limits, Correlation("other"), capabilities=("input",))
        script.feed(v2.encode(frame))
        self.assertEqual(script.closes, 1)
        self.assertEqual(script.machine.state, "waiting")

    def test_every_connection_has_an_id_of_its_own(self) -> None:
        """v2: connection_id tells connections apart."""
        script = Script()
        first = script.connection_id
        script.lose()
        script.reopen()
        self.assertNotEqual(script.connection_id, first)

    def test_a_slave_without_our_version_ends_it(self) -> None:
        """v2: unsupported_version is nothing that trying again would help."""
        script = Script(opens=False)
        key = script.attach()
        script.do(script.machine.connected(0.0))
        script.refuse(Code.UNSUPPORTED_VERSION)
        self.assertTrue(script.is_over)
        self.assertEqual(script.contents(key), [Detached("unsupported_version", "no")])
        self.assertIsNone(script.machine.deadline)

    def test_a_slave_that_does_not_answer_is_given_up(self) -> None:
        """A hello is answered within its time, or the connection is made anew."""
        script = Script(opens=False)
        script.do(script.machine.connect())
        script.do(script.machine.connected(0.0))
        script.wait(10.0)
        self.assertEqual((script.closes, script.machine.state), (1, "waiting"))

    def test_delays_grow_and_are_drawn_in_full(self) -> None:
        """Reconnects back off with full jitter."""
        script = Script(opens=False)
        script.do(script.machine.connect())
        waits = []
        for _ in range(4):
            script.do(script.machine.peer_lost("no", script.now))
            deadline = script.machine.deadline
            assert deadline is not None
            waits.append(deadline - script.now)
            script.wait(waits[-1])
        self.assertEqual(waits, [0.5, 1.0, 2.0, 4.0])

    def test_garbage_breaks_the_connection_and_the_rest_of_it_is_ignored(self) -> None:
        """I22: what is no frame ends the connection; nothing is resynchronised."""
        script = Script()
        key, wire = script.begin()
        script.events(key)
        good = v2.encode(
            data.build(Accepted(), Correlation(script.connection_id, wire, "r", "u"), session_seq=1)
        )
        script.feed(b"nonsense\n" + good)
        self.assertEqual(script.contents(key)[0].__class__, Disconnected)
        self.assertEqual(script.events(key), [])
        self.assertEqual(script.closes, 1)

    def test_a_flood_without_a_newline_is_cut(self) -> None:
        """v2: a frame has at most 256 KiB, from the slave as well."""
        script = Script()
        script.feed(b"x" * (256 * 1024))
        self.assertEqual((script.closes, script.machine.state), (1, "waiting"))

    def test_a_frame_of_a_masters_kind_is_refused(self) -> None:
        """v2: an illegal side fails closed."""
        script = Script()
        hello = data.build(
            data.Hello((v2.ABI,)), Correlation(script.connection_id), capabilities=("input",)
        )
        script.feed(v2.encode(hello))
        self.assertEqual(script.closes, 1)

    def test_members_that_we_do_not_know_are_ignored(self) -> None:
        """v2: unknown JSON fields are ignored."""
        script = Script()
        key, wire = script.begin()
        frame = data.build(
            Message("assistant", "x"),
            Correlation(script.connection_id, wire, "r", "u"),
            session_seq=1,
        )
        values = msgspec.json.decode(v2.encode(frame))
        values["more"] = values["event"]["data"]["more"] = {"a": [1]}
        script.feed(msgspec.json.encode(values) + b"\n")
        self.assertEqual(script.contents(key)[-1], Message("assistant", "x"))

    def test_closing_ends_every_attachment_and_request(self) -> None:
        """An application that closes is told so by all that it waits for."""
        script = Script()
        key, _ = script.begin()
        request = script.input(key)
        script.do(script.machine.close())
        self.assertEqual(script.outcomes(request)[-1].__class__, Error)
        self.assertEqual(script.contents(key)[-1].__class__, Detached)
        self.assertRaises(SessionRefused, script.attach)


class AttachTests(SynchronousTestCase):
    def test_without_a_cursor_it_begins_at_the_head(self) -> None:
        """I9: an omitted cursor is not sent, and the head is where it begins."""
        script = Script()
        key = script.attach(after=None)
        self.assertIsNone(after_of(script.sent("attach")[0]))
        wire = script.attached(head=7)
        self.assertEqual(script.outcomes(ATTACH), [Attached(8, 7, False)])
        self.assertEqual(script.machine.attachments[key].processed, 7)
        script.say(Accepted(), wire, "r", "u", seq=8)
        event = script.events(key)[-1]
        self.assertEqual((event.seq, event.is_replay), (8, False))

    def test_replay_is_marked(self) -> None:
        """I41, B41: what is not newer than the attached head is replay."""
        script = Script()
        key, wire = script.begin(after=0, head=1)
        script.say(Accepted(), wire, "r", "u", seq=1)
        script.say(data.Started(), wire, "r", "u", seq=2)
        self.assertEqual([e.is_replay for e in script.events(key)[1:]], [True, False])

    def test_repeats_are_told_once(self) -> None:
        """v2: masters deduplicate by (session, session_seq)."""
        script = Script()
        key, wire = script.begin()
        for seq in (1, 2, 1, 2, 3):
            script.say(Message("user", str(seq)), wire, "r", "u", seq=seq)
        self.assertEqual([e.seq for e in script.events(key)[1:]], [1, 2, 3])

    def test_a_hole_is_asked_for_once_more_and_then_shown(self) -> None:
        """B38: nothing is missing without a word."""
        script = Script()
        key, wire = script.begin()
        script.say(Message("user", "1"), wire, "r", "u", seq=1)
        script.say(Message("user", "4"), wire, "r", "u", seq=4)
        self.assertEqual(len(script.sent("detach")), 1)
        self.assertEqual(after_of(script.sent("attach")[-1]), 1)
        script.say(Message("user", "5"), wire, "r", "u", seq=5)  # of the old attachment
        wire = script.attached(head=5)
        script.say(Message("user", "4"), wire, "r", "u", seq=4)
        contents = script.contents(key)
        self.assertEqual(contents[-2:], [Gap(2, 3, "missing"), Message("user", "4")])
        self.assertNotIn(Message("user", "5"), contents)

    def test_a_gap_moves_the_cursor(self) -> None:
        """I9: what retention took is told with exact bounds, and not asked for again."""
        script = Script()
        key, wire = script.begin(after=0, head=9)
        script.say(Gap(1, 8, "retention"), wire)
        script.say(Message("user", "9"), wire, "r", "u", seq=9)
        self.assertEqual([e.seq for e in script.events(key)[1:]], [8, 9])
        script.lose()
        script.reopen()
        self.assertEqual(after_of(script.sent("attach")[-1]), 9)

    def test_it_comes_back_from_the_last_contiguous_seq(self) -> None:
        """v2, reconnect: attach again with the highest contiguous cursor, read or not."""
        script = Script()
        key, wire = script.begin()
        for seq in (1, 2, 3):
            script.say(Message("user", str(seq)), wire, "r", "u", seq=seq)
        script.lose()
        script.reopen()
        self.assertEqual(after_of(script.sent("attach")[0]), 3)
        script.attached(head=3)
        kinds = [type(content) for content in script.contents(key)]
        self.assertEqual(kinds, [Attached, Message, Message, Message, Disconnected, Attached])

    def test_an_event_of_a_type_that_we_do_not_know_is_a_fact_like_others(self) -> None:
        """I20: more may come; the cursor goes on."""
        script = Script()
        key, wire = script.begin()
        frame = data.build(
            Message("user", "x"), Correlation(script.connection_id, wire, "r", "u"), session_seq=1
        )
        values = msgspec.json.decode(v2.encode(frame))
        values["event"]["data"] = {"type": "novel"}
        script.feed(msgspec.json.encode(values) + b"\n")
        event = script.events(key)[-1]
        self.assertEqual((event.content, event.seq), (Opaque("novel"), 1))

    def test_a_no_to_an_attach_is_final(self) -> None:
        """v2: an unauthorized attach is not tried in other ways."""
        script = Script()
        key = script.attach()
        wire = script.sent("attach")[0].correlation.attachment_id or ""
        script.refuse(Code.FORBIDDEN, wire)
        self.assertEqual(script.outcomes(ATTACH), [Error("forbidden", "no", False)])
        self.assertEqual(script.contents(key), [Detached("forbidden", "no")])
        self.assertEqual(len(script.sent("attach")), 1)

    def test_a_cursor_beyond_the_head_is_told_and_not_worked_around(self) -> None:
        """I9: cursor_ahead is a restored or foreign log; only the user can say what then."""
        script = Script()
        key = script.attach(after=99)
        wire = script.sent("attach")[0].correlation.attachment_id or ""
        script.refuse(Code.CURSOR_AHEAD, wire)
        self.assertEqual(script.contents(key), [Detached("cursor_ahead", "no")])

    def test_a_session_that_is_locked_for_now_is_tried_again_later(self) -> None:
        """I14: who was attached comes back once the lock's owner lets go."""
        script = Script()
        key, _ = script.begin()
        script.lose()
        script.reopen()
        for tries in (1, 2):
            attaches = script.sent("attach")
            self.assertEqual(len(attaches), tries)
            script.refuse(Code.SESSION_LOCKED, attaches[-1].correlation.attachment_id or "")
            assert script.machine.deadline is not None
            script.wait(script.machine.deadline - script.now)
        script.attached()
        self.assertEqual(script.contents(key)[-1], Attached(1, 0, True))

    def test_a_session_whose_log_finds_no_room_is_tried_again_later(self) -> None:
        """I13: the user is told, and nothing is asked for in haste; damage ends it."""
        full, damaged = Error("session_io", "no room", True), Error("session_io", "torn", False)
        script = Script()
        key, wire = script.begin()
        script.say(full, wire)
        self.assertEqual(script.contents(key)[-1], Disconnected("no room"))
        script.wait(1.0)
        self.assertEqual(len(script.sent("attach")), 1)
        for tries in (2, 3):
            assert script.machine.deadline is not None
            script.wait(script.machine.deadline - script.now)
            attaches = script.sent("attach")
            self.assertEqual(len(attaches), tries)
            if tries == 2:
                script.say(full, attaches[-1].correlation.attachment_id or "")
        wire = script.attached()
        self.assertEqual(script.contents(key)[-1], Attached(1, 0, True))
        script.say(damaged, wire)
        self.assertEqual(script.contents(key)[-1], Detached("session_io", "torn"))

    def test_the_first_attach_to_a_locked_session_is_refused(self) -> None:
        """I14: whoever is not attached yet is told, and that it may be tried again."""
        script = Script()
        script.attach()
        wire = script.sent("attach")[0].correlation.attachment_id or ""
        script.refuse(Code.SESSION_LOCKED, wire)
        self.assertEqual(script.outcomes(ATTACH), [Error("session_locked", "no", True)])

    def test_no_more_attachments_than_the_slave_allows(self) -> None:
        """v2: the master obeys max_attachments."""
        limits = msgspec.structs.replace(data.DEFAULT_LIMITS, max_attachments=1)
        script = Script(limits=limits)
        script.begin()
        second = script.attach()
        self.assertEqual(len(script.sent("attach")), 1)
        last = script.contents(second)[-1]
        assert isinstance(last, Detached)
        self.assertEqual(last.code, "limit_exceeded")

    def test_detached_attachments_hear_nothing(self) -> None:
        """v2: detach removes only that attachment, and what is on its way to it is dropped."""
        script = Script()
        one, wire = script.begin()
        other, other_wire = script.begin()
        script.do(script.machine.detach(one))
        self.assertEqual(script.sent("detach")[0].correlation.attachment_id, wire)
        script.say(Message("user", "x"), wire, "r", "u", seq=1)
        script.say(Message("user", "y"), other_wire, "r", "u", seq=1)
        self.assertEqual(script.contents(one), [])
        self.assertEqual(script.contents(other)[-1], Message("user", "y"))
        self.assertEqual(script.closes, 0)

    def test_an_attachment_that_ends_leaves_the_others(self) -> None:
        """B52, I23: one attachment's end is nobody else's."""
        script = Script()
        one, wire = script.begin()
        other, other_wire = script.begin()
        script.refuse(Code.SESSION_IO, wire)
        script.say(Message("user", "y"), other_wire, "r", "u", seq=1)
        self.assertEqual(script.contents(one)[-1], Detached("session_io", "no"))
        self.assertEqual(script.contents(other)[-1], Message("user", "y"))


class RequestTests(SynchronousTestCase):
    def test_an_input_is_accepted_and_ends(self) -> None:
        """v2: accepted names the run, done ends it."""
        script = Script()
        key, wire = script.begin()
        request = script.input(key)
        script.say(Accepted(), wire, request, "run", seq=1)
        script.say(Done("completed"), wire, request, "run", seq=2)
        self.assertEqual(script.outcomes(request), [RunAccepted("run"), Done("completed")])
        self.assertTrue(all(e.is_own for e in script.events(key)[1:]))

    def test_a_refusal_ends_a_request(self) -> None:
        """I7: an error on a request answers it."""
        script = Script()
        key, wire = script.begin()
        request = script.input(key)
        script.refuse(Code.BUSY, wire, request)
        self.assertEqual(script.outcomes(request), [Error("busy", "no", True)])

    def test_what_is_not_answered_is_sent_again_with_the_same_id(self) -> None:
        """I10: retries keep their request_id, and their content."""
        script = Script()
        key, _ = script.begin()
        request = script.input(key, "words", cwd="/tmp")
        before = script.sent("input")[0]
        script.lose()
        script.reopen()
        self.assertEqual(script.sent("input"), [])
        script.attached()
        after = script.sent("input")[0]
        self.assertEqual(after.correlation.request_id, request)
        self.assertEqual(after.event, before.event)

    def test_an_answer_to_a_retry_comes_before_its_turn(self) -> None:
        """I10: accepted and done of long ago settle the request, and are facts in their turn."""
        script = Script()
        key, wire = script.begin()
        request = script.input(key)
        script.lose()
        script.reopen()
        wire = script.attached(head=3)
        script.say(Accepted(), wire, request, "run", seq=1)
        script.say(Done("interrupted"), wire, request, "run", seq=3)
        self.assertEqual(script.outcomes(request), [RunAccepted("run"), Done("interrupted")])
        for seq, content in ((1, Accepted()), (2, Message("user", "hi")), (3, Done("interrupted"))):
            script.say(content, wire, request, "run", seq=seq)
        facts = [event.seq for event in script.events(key) if event.seq]
        self.assertEqual(facts, [1, 2, 3])
        self.assertEqual(len(script.outcomes(request)), 2)
        self.assertEqual(script.sent("detach"), [])

    def test_a_cancel_is_answered_by_the_runs_done(self) -> None:
        """I8, I30: done answers the input and the cancel, each once."""
        script = Script()
        key, wire = script.begin()
        request = script.input(key)
        script.say(Accepted(), wire, request, "run", seq=1)
        cancel, actions = script.machine.cancel(key, "run")
        script.do(actions)
        ids = script.sent("cancel")[0].correlation
        self.assertEqual((ids.request_id, ids.run_id), (cancel, "run"))
        script.say(Done("cancelled"), wire, request, "run", seq=2)
        self.assertEqual(script.outcomes(cancel), [Done("cancelled")])
        self.assertEqual(script.outcomes(request)[-1], Done("cancelled"))

    def test_a_cancel_of_an_unknown_run_is_refused(self) -> None:
        """I8: unknown_run."""
        script = Script()
        key, wire = script.begin()
        cancel, actions = script.machine.cancel(key, "other")
        script.do(actions)
        script.refuse(Code.UNKNOWN_RUN, wire, cancel, "other")
        self.assertEqual(script.outcomes(cancel), [Error("unknown_run", "no", False)])

    def test_a_status_is_for_who_asked(self) -> None:
        """v2: status answers a request; it is no event of the session's."""
        script = Script()
        key, wire = script.begin()
        request, actions = script.machine.status(key)
        script.do(actions)
        state = data.SessionState("idle", None, 0, 4)
        script.say(state, wire, request)
        self.assertEqual(script.outcomes(request), [state])
        self.assertEqual(len(script.events(key)), 1)

    def test_no_more_is_pending_than_the_slave_allows(self) -> None:
        """v2: the master obeys max_pending_requests_per_attachment."""
        limits = msgspec.structs.replace(data.DEFAULT_LIMITS, max_pending_requests_per_attachment=2)
        script = Script(limits=limits)
        key, wire = script.begin()
        first, *_ = [script.input(key, str(n)) for n in range(5)]
        self.assertEqual(len(script.sent("input")), 2)
        script.say(Accepted(), wire, first, "run", seq=1)
        self.assertEqual(len(script.sent("input")), 2)
        script.say(Done("completed"), wire, first, "run", seq=2)
        self.assertEqual(len(script.sent("input")), 3)
        _, actions = script.machine.cancel(key, "run2")
        script.do(actions)
        self.assertEqual(len(script.sent("cancel")), 1)

    def test_what_waits_is_bounded(self) -> None:
        """Every queue has an end."""
        script = Script()
        key, _ = script.begin()
        for n in range(256):
            script.input(key, str(n))
        self.assertRaises(SessionRefused, script.input, key)

    def test_words_beyond_a_frame_are_refused_here(self) -> None:
        """v2: a frame has at most 256 KiB; nothing is sent."""
        script = Script()
        key, _ = script.begin()
        self.assertRaises(LocalProtocolError, script.input, key, "x" * 300_000)
        self.assertEqual(script.sent("input"), [])

    def test_a_runs_failure_is_a_fact_and_answers_nothing(self) -> None:
        """I7: an error that changes history is durable; done is what ends the request."""
        script = Script()
        key, wire = script.begin()
        request = script.input(key)
        script.say(Accepted(), wire, request, "run", seq=1)
        script.say(Error("internal", "it broke", False), wire, request, "run", seq=2)
        self.assertEqual(script.outcomes(request), [RunAccepted("run")])
        self.assertEqual(script.events(key)[-1].seq, 2)

    def test_complaints_that_answer_nothing_are_told(self) -> None:
        """I32: invalid_ack and its like leave the attachment as it is."""
        script = Script()
        key, wire = script.begin()
        script.refuse(Code.INVALID_ACK, wire)
        script.say(Message("user", "x"), wire, "r", "u", seq=1)
        self.assertEqual(
            script.contents(key)[1:], [Warned("invalid_ack", "no"), Message("user", "x")]
        )

    def test_an_observer_asks_for_nothing_that_acts(self) -> None:
        """I4: observe has observe, and neither input nor cancel."""
        script = Script()
        script.attach(mode="observe")
        frame = script.sent("attach")[0]
        self.assertEqual(frame.event.mode, "observe")
        self.assertEqual(set(frame.event.capabilities), {"observe", "status", "replay"})


class AckTests(SynchronousTestCase):
    def test_only_what_was_dealt_with_is_acknowledged(self) -> None:
        """v2: the cursor moves after processing; acks are cumulative."""
        script = Script()
        key, wire = script.begin()
        for seq in range(1, 6):
            script.say(Message("user", str(seq)), wire, "r", "u", seq=seq)
        script.wait(1.0)
        self.assertEqual(script.sent("ack"), [])
        for _ in range(4):
            script.take(key)  # attached, 1, 2, 3
        script.wait(0.2)
        self.assertEqual([frame.session_seq for frame in script.sent("ack")], [3])
        script.wait(5.0)
        self.assertEqual(len(script.sent("ack")), 1)

    def test_a_quarter_of_the_window_is_acknowledged_at_once(self) -> None:
        """A fast reader never stands at a full window."""
        limits = msgspec.structs.replace(data.DEFAULT_LIMITS, max_unacked_events_per_attachment=8)
        script = Script(limits=limits)
        key, wire = script.begin()
        for seq in range(1, 9):
            script.say(Message("user", str(seq)), wire, "r", "u", seq=seq)
        script.events(key)
        self.assertEqual([frame.session_seq for frame in script.sent("ack")], [2, 4, 6, 8])

    def test_what_a_new_attachment_begins_with_is_not_acknowledged_again(self) -> None:
        """I32: an ack is never below what the slave knows."""
        script = Script()
        key, wire = script.begin()
        for seq in (1, 2, 3):
            script.say(Message("user", str(seq)), wire, "r", "u", seq=seq)
        script.lose()
        script.reopen()
        script.attached(head=3)
        script.events(key)
        script.wait(1.0)
        self.assertEqual(script.sent("ack"), [])


class SlownessTests(SynchronousTestCase):
    def test_a_slow_consumer_comes_back_when_it_has_read_all(self) -> None:
        """I34: reconnecting and replaying from the cursor is the recovery path."""
        script = Script()
        key, wire = script.begin()
        for seq in (1, 2):
            script.say(Message("user", str(seq)), wire, "r", "u", seq=seq)
        script.refuse(Code.SLOW_CONSUMER, wire)
        self.assertEqual(len(script.sent("attach")), 1)
        script.events(key)
        self.assertEqual(after_of(script.sent("attach")[1]), 2)

    def test_what_waits_for_the_application_is_bounded(self) -> None:
        """B31, from the other side: an application that does not read costs bounded memory."""
        script = Script(inbox_bytes=10_000)
        key, wire = script.begin()
        for seq in range(1, 51):
            script.say(Message("user", "x" * 1000), wire, "r", "u", seq=seq)
        attachment = script.machine.attachments[key]
        self.assertLess(attachment.inbox.held, 12_000)
        self.assertEqual(len(script.sent("detach")), 1)
        read = [e.seq for e in script.events(key) if e.seq]
        self.assertEqual(after_of(script.sent("attach")[-1]), read[-1])

    def test_one_attachments_slowness_leaves_the_others(self) -> None:
        """B31: other attachments see no delay."""
        script = Script(inbox_bytes=5_000)
        one, wire = script.begin()
        other, other_wire = script.begin()
        for seq in range(1, 20):
            script.say(Message("user", "x" * 1000), wire, "r", "u", seq=seq)
        script.say(Message("user", "y"), other_wire, "r", "u", seq=1)
        self.assertEqual(script.contents(other)[-1], Message("user", "y"))
        self.assertEqual(script.closes, 0)
        self.assertFalse(any(isinstance(a, Connect) for a in script.actions[1:]))
        self.assertEqual(script.machine.attachments[one].state, "waiting")
