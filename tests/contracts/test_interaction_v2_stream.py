"""interaction/v2 as the slave serves it, the stream: framing, attachments, frames.

Each class cites its section, each test one statement of it.
"""

from __future__ import annotations

import json
from typing import Any

from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.exchange import Accepted, Delta, Message, RequestApproval, ToolCall
from cortextx.interaction import data, v2
from cortextx.interaction.correlation import Correlation
from cortextx.interaction.faults import MAX_FRAME_BYTES
from cortextx.interaction.slave.policy import Rule
from cortextx.interfaces.sessions import Peer
from tests.interaction.slave.desk import HELLO, Desk, Wire, attach
from tests.interaction.slave.hub import Hub, Master, kinds

LIMITS = (
    "max_attachments",
    "max_pending_requests_per_attachment",
    "max_pending_commands_per_attachment",
    "max_unacked_events_per_attachment",
    "max_outbound_bytes_per_attachment",
    "max_outbound_bytes_per_connection",
    "max_replay_events_per_batch",
)


def frame(kind: str, *ids: str | None, **event: Any) -> dict[str, Any]:
    """A master's frame as plain JSON."""
    names = ("connection_id", "attachment_id", "request_id", "run_id", "command_id")
    members = {name: ids[n] if n < len(ids) else None for n, name in enumerate(names)}
    body = {
        "side": "master",
        "kind": kind,
        "capabilities": [],
        "mode": None,
        "session": None,
        "origin": None,
        "durable": False,
        "data": {},
    }
    seq = event.pop("session_seq", None)
    return {
        "abi": v2.ABI,
        "correlation": members,
        "session_seq": seq,
        "event": body | event,
    }


def hello(**more: Any) -> dict[str, Any]:
    """A hello as plain JSON."""
    offer = {"versions": [v2.ABI]} | more
    return frame("hello", "c", capabilities=["input", "observe"], data=offer)


def names(frames: list[dict[str, Any]]) -> list[str]:
    """The kinds of frames, and the codes of errors."""
    return [
        each["event"]["data"]["code"] if each["event"]["kind"] == "error" else each["event"]["kind"]
        for each in frames
    ]


class FramingAndNegotiation(SynchronousTestCase):
    """Framing and negotiation."""

    def wire(self) -> Wire:
        """A connection that said hello and is attached."""
        wire = Desk().call()
        wire.say(HELLO, attach())
        return wire

    def test_the_first_frame_must_be_hello(self) -> None:
        """Any other ends the connection before anything is done."""
        desk = Desk()
        wire = desk.call()
        self.assertEqual(names(wire.say(attach())), ["bad_frame"])
        self.assertTrue(wire.is_closed)
        self.assertEqual(desk.opened, [])

    def test_welcome_answers_on_the_same_connection_id_with_finite_positive_limits(self) -> None:
        """All seven, as integers, under the selected ABI."""
        (welcome,) = Desk().call().say(hello(master_id="discord.primary"))
        self.assertEqual(welcome["abi"], v2.ABI)
        self.assertEqual(welcome["correlation"]["connection_id"], "c")
        self.assertEqual((welcome["event"]["side"], welcome["event"]["kind"]), ("slave", "welcome"))
        for name in LIMITS:
            self.assertGreater(welcome["event"]["data"][name], 0, name)
        self.assertEqual(welcome["event"]["data"]["max_frame_bytes"], MAX_FRAME_BYTES)

    def test_fallback_versions_are_not_selected_in_place(self) -> None:
        """Our version offered as a fallback only is no offer of it: an error, then the end."""
        wire = Desk().call()
        offer = hello(versions=["other/v9"], fallback_versions=[v2.ABI])
        self.assertEqual(names(wire.say(offer)), ["unsupported_version"])
        self.assertTrue(wire.is_closed)

    def test_one_of_several_offered_versions_is_selected(self) -> None:
        """The one that we speak."""
        got = Desk().call().say(hello(versions=["other/v9", v2.ABI]))
        self.assertEqual(names(got), ["welcome"])

    def test_a_live_stream_never_changes_its_version(self) -> None:
        """A frame of another ABI ends it, and is not served."""
        for other in ("cortexfs.interaction/v1", "cortexfs.interaction/v3", None):
            wire = self.wire()
            wire.say(frame("status", "c", "a", "s") | {"abi": other})
            self.assertTrue(wire.is_closed, other)

    def test_unknown_members_are_ignored_everywhere(self) -> None:
        """In the frame, the correlation, the event and its data."""
        sent = frame("status", "c", "a", "s", data={"new": [1]}, extra={"x": 1})
        sent["more"] = True
        sent["correlation"]["trace_id"] = "t"
        self.assertEqual(names(self.wire().say(sent)), ["status"])

    def test_what_cannot_be_attributed_ends_the_connection(self) -> None:
        """Bad UTF-8, bad JSON, two values on a line, and a foreign connection."""
        good = json.dumps(frame("status", "c", "a", "s")).encode()
        for line in (
            b"{\n",
            b"[]\n",
            b'"\xff"\n',
            good + good + b"\n",
            json.dumps(frame("status", "other", "a", "s")).encode() + b"\n",
            json.dumps(frame("status", "c", "unknown", "s", durable="x")).encode() + b"\n",
        ):
            wire = self.wire()
            got = wire.say(line)
            self.assertTrue(wire.is_closed, line)
            self.assertEqual(names(got), ["bad_frame"], line)

    def test_an_attachment_s_fault_rejects_that_request_only(self) -> None:
        """A missing field, an unknown kind, a wrong side, a wrong seq: the stream goes on."""
        odd = frame("status", "c", "a", "s")
        del odd["event"]["durable"]
        wire = self.wire()
        for sent, ids in (
            (odd, ("a", "s")),
            (frame("dance", "c", "a", "s"), ("a", "s")),
            (frame("status", "c", "a", "s", side="slave"), ("a", "s")),
            (frame("status", "c", "a", "s", session_seq=4), ("a", "s")),
            (frame("input", "c", "a", "s", data={"text": "no origin"}), ("a", "s")),
            (frame("input", "c", "a", "s", origin={"transport": "t"}), ("a", "s")),
            (frame("status", "c", "a"), ("a", None)),
            (frame("ack", "c", "a"), ("a", None)),
        ):
            (error,) = wire.say(sent)
            self.assertEqual(names([error]), ["bad_frame"], sent)
            told = error["correlation"]
            self.assertEqual((told["attachment_id"], told["request_id"]), ids, sent)
        self.assertEqual(names(wire.say(frame("status", "c", "a", "s"))), ["status"])

    def test_a_frame_may_have_256_kib_and_not_one_byte_more_B34(self) -> None:
        """Its newline counts; one byte over ends the stream (I22)."""
        sent = json.dumps(frame("status", "c", "a", "s", data={"pad": ""})).encode()
        fits = sent.replace(
            b'"pad": ""', b'"pad": "%s"' % (b"x" * (MAX_FRAME_BYTES - len(sent) - 1))
        )
        wire = self.wire()
        self.assertEqual(len(fits) + 1, MAX_FRAME_BYTES)
        self.assertEqual(names(wire.say(fits + b"\n")), ["status"])
        self.assertEqual(names(wire.say(fits.replace(b"xx", b"xxx", 1) + b"\n")), ["bad_frame"])
        self.assertTrue(wire.is_closed)

    def test_identifiers_have_1_to_128_bytes(self) -> None:
        """Of UTF-8, so that 64 two-byte characters are the most."""
        wire = self.wire()
        for good in ("x", "x" * 128, "ü" * 64):
            self.assertEqual(names(wire.say(frame("status", "c", "a", good))), ["status"])
        for bad in ("", "x" * 129, "ü" * 64 + "x", "a\u0000", "a\nb"):
            self.assertEqual(names(wire.say(frame("status", "c", "a", bad))), ["bad_frame"])

    def test_an_incomplete_last_line_is_not_served(self) -> None:
        """The bytes of an input without its newline claim nothing."""
        wire = self.wire()
        sent = frame("input", "c", "a", "r1", origin={"transport": "t"}, data={"text": "hi"})
        self.assertEqual(wire.say(json.dumps(sent).encode()), [])
        wire.protocol.readConnectionLost()
        self.assertEqual(wire.read(), [])
        self.assertTrue(wire.is_closed or wire.is_aborted)


class MultiplexedAttachmentsAndReplay(SynchronousTestCase):
    """Multiplexed attachments and replay."""

    def setUp(self) -> None:
        self.hub = Hub()
        self.master = Master(self.hub)

    def run_one(self, request: str = "r1", attachment: str = "w") -> None:
        """A whole run."""
        self.master.input(request, attachment=attachment)
        self.hub.spread(self.hub.box.end(self.hub.box.started()[-1]))
        self.master.read()

    def test_one_connection_carries_several_sessions(self) -> None:
        """Each attachment names its own, and has its facts only."""
        desk = Desk()
        wire = desk.call()
        other = json.loads(attach("other"))
        other["correlation"]["attachment_id"] = "b"
        wire.say(HELLO, attach("one"), other)
        sent = frame("input", "c", "b", "r1", origin={"transport": "t"}, data={"text": "hi"})
        wire.say(sent)
        desk.wait(1.0)
        got = wire.read()
        self.assertEqual(len(desk.opened), 2)
        self.assertEqual({each["correlation"]["attachment_id"] for each in got}, {"b"})

    def test_attached_tells_scope_mode_start_and_head(self) -> None:
        """As they were authorized."""
        self.master.attach("w")
        self.run_one()
        attached = self.master.attach("late", 2, mode="observe")[0]
        told = data.read(attached)
        assert isinstance(told, data.Attached)
        self.assertEqual(
            (told.scope, attached.event.mode, attached.event.session, told.replay_from, told.head),
            ("private", "observe", "default", 3, 4),
        )
        self.assertEqual(set(attached.event.capabilities), {"observe", "replay", "status"})

    def test_cursor_0_asks_for_all_and_none_for_the_future_only(self) -> None:
        """In ascending order, each once, before what is new."""
        self.master.attach("w")
        self.run_one()
        self.master.attach("all", 0, mode="observe")
        self.master.attach("new", mode="observe")
        self.run_one("r2")
        self.assertEqual(self.master.facts("all"), list(range(1, 9)))
        self.assertEqual(self.master.facts("new"), list(range(5, 9)))

    def test_each_attachment_has_a_cursor_of_its_own_B04(self) -> None:
        """What one acknowledges moves no other, on the same connection or elsewhere."""
        self.master.attach("w")
        self.run_one()
        for cursor in (0, 1, 3):
            self.master.attach(f"from-{cursor}", cursor, mode="observe")
        self.master.ack(4, "from-0")
        self.run_one("r2")
        for cursor in (0, 1, 3):
            self.assertEqual(self.master.facts(f"from-{cursor}"), list(range(cursor + 1, 9)))

    def test_a_replay_has_the_same_events_as_the_first_delivery_B07(self) -> None:
        """Of every class, byte for byte but for the address; the filter is what attached
        echoes: without observe and replay, the attachment's own requests."""
        self.master.attach("w")
        self.run_one()
        self.master.attach("late", 0, mode="observe")
        told: dict[str, dict[int, tuple[str, bytes]]] = {"w": {}, "late": {}}
        for each in self.master.frames:
            name = each.correlation.attachment_id
            if each.session_seq and name:
                told[name][each.session_seq] = (each.kind, bytes(each.event.data))
        self.assertEqual(told["w"], told["late"])
        mine = self.master.attach("own", 0, capabilities=("input",))
        self.assertEqual(mine[0].event.capabilities, ("input",))
        self.assertEqual(self.master.facts("own"), [])

    def test_an_ack_is_cumulative_and_deletes_nothing(self) -> None:
        """What was acknowledged is replayed to whoever asks."""
        self.master.attach("w")
        self.run_one()
        self.assertEqual(self.master.ack(4, "w"), [])
        self.master.attach("again", 0, mode="observe")
        self.assertEqual(self.master.facts("again"), [1, 2, 3, 4])

    def test_detach_removes_that_attachment_only(self) -> None:
        """Facts go on to the others; the detached one is unknown."""
        self.master.attach("w")
        self.master.attach("x", mode="observe")
        self.master.send(data.Detach(), "x")
        self.run_one()
        self.assertEqual(self.master.facts("x"), [])
        self.assertEqual(self.master.facts("w"), [1, 2, 3, 4])
        self.assertEqual(
            kinds(self.master.send(data.StatusRequest(), "x", "s")), ["unknown_attachment"]
        )

    def test_closing_a_connection_cancels_nothing(self) -> None:
        """The run goes on, and its facts are there for the next connection (B37)."""
        self.master.attach("w")
        self.master.input("r1", attachment="w")
        self.master.act(self.master.machine.peer_lost())
        run = self.hub.box.started()[0]
        self.hub.spread(self.hub.box.emit(run, Message("r1", run, "assistant", "on")))
        self.hub.spread(self.hub.box.end(run))
        late = Master(self.hub)
        late.attach("w", 0)
        self.assertEqual(late.facts("w"), [1, 2, 3, 4, 5])
        self.assertEqual(late.frames[-1].kind, "done")

    def test_an_unauthorized_mode_or_capability_is_rejected_and_not_reduced(self) -> None:
        """Neither upgraded nor silently cut down."""
        rule = Rule(uids=[2000], mode="observe", capabilities=["observe", "replay"])
        hub = Hub(rules=[rule])
        hub.policy = type(hub.policy)(1000, ["echo"], [rule])
        guest = Master(hub, peer=Peer(2000, 2000, 7))
        self.assertEqual(kinds(guest.attach("a"))[-1], "forbidden")
        self.assertEqual(kinds(guest.attach("a", mode="observe")), ["forbidden"])
        got = guest.attach("a", mode="observe", capabilities=("observe", "replay"))
        self.assertEqual(kinds(got), ["attached"])

    def test_observe_and_interact_need_their_capabilities_I4(self) -> None:
        """Also: an observer may not ask for what acts. The frame is at fault."""
        for mode, capabilities in (
            ("observe", ["replay"]),
            ("observe", ["observe", "cancel"]),
            ("interact", ["observe"]),
            ("interact", ["input", "input"]),
        ):
            wire = Desk().call()
            wire.say(HELLO)
            sent = frame(
                *("attach", "c", "a"),
                mode=mode,
                capabilities=capabilities,
                session="s",
                data={"agent": "echo", "scope": "private"},
            )
            self.assertEqual(names(wire.say(sent)), ["bad_frame"], capabilities)

    def test_a_session_name_beyond_the_set_is_refused_on_the_attachment_I41(self) -> None:
        """The stream lives."""
        wire = Desk().call()
        wire.say(HELLO)
        for name in ("..", "a/b", "index", "ü"):
            self.assertEqual(names(wire.say(attach(name))), ["bad_frame"])
        self.assertEqual(names(wire.say(attach("a.b-c_1"))), ["attached"])


class FrameFamiliesAndCorrelation(SynchronousTestCase):
    """Frame families and correlation."""

    def setUp(self) -> None:
        self.hub = Hub()
        self.master = Master(self.hub)
        self.master.attach()
        self.master.input("r1")
        self.run_id = self.hub.box.started()[0]

    def ask(self, effect: str | None = "effect-1") -> v2.Frame:
        """A command; answers its frame."""
        command = RequestApproval("rm", Raw(b'{"path":"x"}'))
        self.hub.spread(self.hub.box.ask(self.run_id, command, effect))
        return next(each for each in self.master.read() if each.kind == "command")

    def test_every_frame_has_the_correlation_of_its_family(self) -> None:
        """`decode` checks each against I1; here is what the ids are."""
        self.ask()
        self.master.send(data.StatusRequest(), "a", "s1")
        self.hub.spread(self.hub.box.end(self.run_id))
        self.master.read()
        for each in self.master.frames:
            ids = each.correlation
            if each.kind in ("accepted", "started", "event", "done", "command"):
                self.assertEqual((ids.request_id, ids.run_id), ("r1", self.run_id), each.kind)
            if each.kind == "status":
                self.assertEqual((ids.request_id, ids.run_id), ("s1", None))

    def test_accepted_started_and_done_are_durable_facts(self) -> None:
        """With positive seqs; deltas and commands have none."""
        self.hub.spread(self.hub.box.emit(self.run_id, Delta("r1", self.run_id, "d")))
        self.ask()
        self.hub.spread(self.hub.box.end(self.run_id))
        self.master.read()
        for each in self.master.frames:
            if each.kind in ("accepted", "started", "done"):
                self.assertTrue(each.event.durable)
                self.assertGreater(each.session_seq or 0, 0)
            if each.kind == "command" or b'"delta"' in bytes(each.event.data):
                self.assertIsNone(each.session_seq)

    def test_a_command_carries_its_effect_and_takes_one_result(self) -> None:
        """The same result again changes nothing; another one conflicts."""
        ids = self.ask().correlation
        path = ("a", "r1", self.run_id, ids.command_id or "")
        answer = data.CommandResult(Accepted(), "effect-1")
        self.assertEqual(kinds(self.master.send(answer, *path)), ["event"])
        head = len(self.hub.box.log)
        self.assertEqual(self.master.send(answer, *path), [])
        other = data.CommandResult(Accepted(), "effect-2")
        self.assertEqual(kinds(self.master.send(other, *path)), ["command_conflict"])
        self.assertEqual(len(self.hub.box.log), head)

    def test_an_error_carries_the_longest_attributable_prefix(self) -> None:
        """Down to the command that it is about."""
        answer = data.CommandResult(Accepted())
        (error,) = self.master.send(answer, "a", "r1", self.run_id, "cmd-x")
        self.assertEqual(kinds([error]), ["unknown_command"])
        self.assertEqual(error.correlation, Correlation("c", "a", "r1", self.run_id, "cmd-x"))
        (error,) = self.master.send(data.Cancel(), "a", "c1", "run-x")
        self.assertEqual(error.correlation, Correlation("c", "a", "c1", "run-x"))

    def test_run_and_command_ids_are_the_slave_s_and_never_used_again(self) -> None:
        """Each run, and each command of it, has its own."""
        first, second = self.ask(), self.ask(None)
        self.hub.spread(self.hub.box.end(self.run_id))
        self.master.input("r2")
        commands = {each.correlation.command_id for each in (first, second)}
        self.assertEqual(len(commands), 2)
        self.assertEqual(len(set(self.hub.box.started())), 2)

    def test_an_event_of_any_type_is_durable_but_the_delta_I20(self) -> None:
        """Messages, tools, and how a command was resolved."""
        box = self.hub.box
        self.hub.spread(box.emit(self.run_id, Message("r1", self.run_id, "assistant", "m")))
        self.hub.spread(box.emit(self.run_id, ToolCall("r1", self.run_id, "k", "ls", "completed")))
        self.ask()
        self.hub.spread(box.end(self.run_id))
        self.master.read()
        types = [
            json.loads(bytes(each.event.data))["type"]
            for each in self.master.frames
            if each.kind == "event" and each.session_seq
        ]
        self.assertEqual(types, ["message", "message", "tool", "command"])
