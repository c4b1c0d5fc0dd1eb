"""interaction/v2 as the slave serves it, the session: order, audience, retries, failures.

Each class cites its section, each test one statement of it.
"""

from __future__ import annotations

import json

import msgspec
from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.exchange import Accepted, Delta, Message, Origin, Rejected, RequestApproval
from cortextx.interaction import data
from cortextx.interaction.data import DEFAULT_LIMITS
from cortextx.interaction.faults import Code
from cortextx.interaction.slave.actions import Fail, Resolve, StartRun
from cortextx.interaction.slave.lines import read_line
from cortextx.interaction.slave.policy import Rule
from cortextx.interfaces.sessions import Peer
from tests.interaction.slave.desk import HELLO, Desk, attach
from tests.interaction.slave.hub import Hub, Master, kinds

ASK = RequestApproval("rm", Raw(b'{"path":"x"}'))
GUEST = Peer(2000, 2000, 7)


class SessionCase(SynchronousTestCase):
    """Two masters on one session."""

    def setUp(self) -> None:
        self.hub = Hub()
        self.one, self.two = Master(self.hub), Master(self.hub)
        self.one.attach()
        self.two.attach()
        self.one.read()
        self.two.read()

    @property
    def run_id(self) -> str:
        """The run that was begun last."""
        return self.hub.box.started()[-1]

    def emit(self, *events: Delta | Message) -> None:
        """Output of it."""
        self.hub.spread(self.hub.box.emit(self.run_id, *events))

    def say(self, text: str) -> None:
        """A message of it."""
        self.emit(Message("-", self.run_id, "assistant", text))

    def ask(self, effect: str | None = "effect") -> tuple[str, ...]:
        """A command of it; answers the ids of its result."""
        self.hub.spread(self.hub.box.ask(self.run_id, ASK, effect))
        frames = [each for each in (*self.one.frames, *self.one.read()) if each.kind == "command"]
        ids = frames[-1].correlation
        return ("a", ids.request_id or "", ids.run_id or "", ids.command_id or "")

    def end(self, status: str = "completed") -> None:
        """Its end."""
        self.hub.spread(self.hub.box.end(self.run_id, status))

    def crash(self) -> Master:
        """kill -9 and a new slave; answers a new connection."""
        self.hub = Hub(self.hub.box.log)
        return Master(self.hub)

    def answers(self) -> list[object]:
        """What the runs were answered."""
        return [each.result for each in self.hub.box.actions if isinstance(each, Resolve)]


class OrderingAndAudience(SessionCase):
    """Ordering and audience."""

    def test_concurrent_inputs_have_one_order_for_everybody(self) -> None:
        """That of acceptance; seqs increase strictly."""
        for n in range(6):
            (self.one, self.two)[n % 2].input(f"r{n}")
        self.one.read()
        self.two.read()
        orders = [
            [
                (each.session_seq, each.correlation.request_id)
                for each in master.frames
                if each.kind == "accepted"
            ]
            for master in (self.one, self.two)
        ]
        self.assertEqual([request for _, request in orders[0]], [f"r{n}" for n in range(6)])
        self.assertEqual(orders[0], orders[1])

    def test_a_fact_is_published_after_its_append(self) -> None:
        """Nobody is told anything while the disk has not said so (I12)."""
        self.hub.box.holds = True
        self.assertEqual(self.one.input("r1"), [])
        self.assertEqual(self.hub.box.started(), [])
        self.hub.box.holds = False
        self.hub.spread(self.hub.box.release())
        self.assertEqual(kinds(self.two.read()), ["accepted", "event", "started"])

    def test_deltas_and_commands_go_to_the_origin_attachment_only_B14(self) -> None:
        """Not to another attachment of the same connection either."""
        self.one.attach("second")
        self.one.input("r1")
        self.one.read()
        self.two.read()
        self.emit(Delta("-", self.run_id, "d"))
        self.ask()
        live = [each for each in self.one.frames if each.kind == "command"]
        live += [each for each in self.one.frames if b'"delta"' in bytes(each.event.data)]
        self.assertEqual({each.correlation.attachment_id for each in live}, {"a"})
        self.assertEqual(self.two.read(), [])

    def test_a_copied_command_id_approves_nothing_I31_B14(self) -> None:
        """From another connection, or another attachment of the origin's own."""
        self.one.attach("second")
        self.one.input("r1")
        path = self.ask()
        self.two.read()
        answer = data.CommandResult(Accepted(), "effect")
        self.assertEqual(kinds(self.two.send(answer, *path)), ["forbidden"])
        self.assertEqual(kinds(self.one.send(answer, "second", *path[1:])), ["forbidden"])
        self.assertEqual(self.answers(), [])

    def test_a_command_of_a_lost_origin_fails_closed_and_is_not_rerouted_I11(self) -> None:
        """Whether it detached or lost its connection; the run goes on as if rejected."""
        for leave in ("detach", "cut"):
            self.setUp()
            self.one.input("r1")
            path = self.ask()
            if leave == "detach":
                self.one.send(data.Detach(), "a")
            else:
                self.one.act(self.one.machine.peer_lost())
            self.assertEqual(self.answers(), [Rejected("origin_lost")])
            self.assertNotIn("command", kinds(self.two.read()))
            answer = data.CommandResult(Accepted(), "effect")
            self.assertEqual(kinds(self.two.send(answer, *path)), ["forbidden"])
            self.say("goes on")
            self.assertEqual(kinds(self.two.read()), ["event"])

    def test_a_master_that_comes_back_is_not_the_origin_I21(self) -> None:
        """Neither by the same attachment id nor by repeating the request."""
        self.one.input("r1")
        path = self.ask()
        self.one.send(data.Detach(), "a")
        self.one.attach()
        self.one.input("r1")
        answer = data.CommandResult(Accepted(), "effect")
        self.assertEqual(kinds(self.one.send(answer, *path)), ["forbidden"])

    def test_a_lost_delta_is_no_hole_in_the_history(self) -> None:
        """Deltas are not replayed, and take no seq."""
        self.one.input("r1")
        self.emit(Delta("-", self.run_id, "d"))
        self.say("done")
        late = Master(self.hub)
        late.attach(after=0)
        self.assertEqual(late.facts(), [1, 2, 3, 4])
        self.assertNotIn(b"delta", b"".join(bytes(each.event.data) for each in late.frames))

    def test_durable_facts_go_to_every_observer_and_reveal_nothing_beside_I36(self) -> None:
        """Claims, UIDs, origins and places stand in the log and in no frame."""
        watcher = Master(self.hub)
        watcher.attach(mode="observe")
        watcher.read()
        sent = data.Input("hi")
        self.one.send(sent, "a", "r1", origin=Origin("secret-transport", identity="secret-who"))
        self.say("words")
        self.end()
        out = b"".join(watcher.out)
        log = self.hub.box.file
        for secret in (b"secret-transport", b"secret-who", b'"claim"', b'"uid"', b'"x":'):
            self.assertIn(secret, log)
            self.assertNotIn(secret, out)
        self.assertEqual(kinds(watcher.read())[-1], "done")

    def test_a_run_has_one_terminal_fact_and_nothing_after_it_B23_B52(self) -> None:
        """Whatever the runtime still says."""
        self.one.input("r1")
        run = self.run_id
        self.end()
        self.hub.spread(self.hub.box.emit(run, Message("-", run, "assistant", "late")))
        self.hub.spread(self.hub.box.end(run, "error"))
        self.assertEqual(kinds(self.one.read())[-1], "done")
        self.assertEqual(kinds(self.one.frames).count("done"), 1)


class IdempotencyAndDelivery(SessionCase):
    """Idempotency and delivery."""

    def test_an_identical_retry_replays_what_there_is_B17(self) -> None:
        """While it runs: accepted; after its end: accepted and done; nothing runs again."""
        self.one.input("r1")
        got = self.two.input("r1")
        self.assertEqual([(f.kind, f.session_seq) for f in got][-1:], [("accepted", 1)])
        self.end()
        self.two.read()
        got = self.two.input("r1")
        self.assertEqual([(f.kind, f.session_seq) for f in got], [("accepted", 1), ("done", 4)])
        self.assertEqual(len(self.hub.box.started()), 1)

    def test_a_retry_after_a_crash_is_the_same_request_B17(self) -> None:
        """The claim lives in the log."""
        self.one.input("r1")
        self.end()
        again = self.crash()
        again.attach()
        got = again.input("r1")
        self.assertEqual(
            [(f.kind, f.session_seq) for f in got[-2:]], [("accepted", 1), ("done", 4)]
        )
        self.assertEqual(kinds(again.input("r1", "other")), ["request_conflict"])
        self.assertEqual(self.hub.box.started(), [])

    def test_another_payload_or_working_directory_conflicts_I10(self) -> None:
        """And claims nothing."""
        self.one.input("r1", "text")
        head = len(self.hub.box.log)
        for other in (
            data.Input("texu"),
            data.Input("text", cwd="/tmp"),
            data.Input("text", event=Raw(b'{"a":1}')),
            data.Input("text", workspace="/tmp"),
        ):
            got = self.one.send(other, "a", "r1", origin=Origin("test"))
            self.assertEqual(kinds(got), ["request_conflict"], other)
        self.assertEqual(len(self.hub.box.log), head)

    def test_origin_and_attachment_are_no_part_of_a_claim_I21(self) -> None:
        """The same request over another front end is the same."""
        self.one.input("r1", "text")
        got = self.two.send(data.Input("text"), "a", "r1", origin=Origin("other", identity="z"))
        self.assertNotIn("request_conflict", kinds(got))
        self.assertEqual(len(self.hub.box.started()), 1)

    def test_another_session_conflicts_with_the_same_request_I21(self) -> None:
        """As far as sessions that are open know."""
        wire = Desk().call()
        wire.say(HELLO, attach("one"))
        other = json.loads(attach("two"))
        other["correlation"]["attachment_id"] = "b"
        wire.say(other)
        body = {
            "side": "master",
            "kind": "input",
            "origin": {"transport": "t"},
            "durable": False,
            "data": {"text": "hi"},
        }
        for attachment, expected in (("a", "accepted"), ("b", "error")):
            ids = {"connection_id": "c", "attachment_id": attachment, "request_id": "r1"}
            got = wire.say({"abi": "cortexfs.interaction/v2", "correlation": ids, "event": body})
            mine = [e for e in got if e["correlation"]["attachment_id"] == attachment]
            self.assertEqual(mine[0]["event"]["kind"], expected)
        self.assertEqual(mine[0]["event"]["data"]["code"], "request_conflict")

    def test_a_repeated_cancel_ends_nothing_twice_I8(self) -> None:
        """One status fact, one done with the input's request id; a later one replays it."""
        self.one.input("r1")
        run = self.run_id
        self.one.send(data.Cancel(), "a", "c1", run)
        self.one.send(data.Cancel(), "a", "c1", run)
        self.end("cancelled")
        (done,) = [each for each in (*self.one.frames, *self.one.read()) if each.kind == "done"]
        self.assertEqual(done.correlation.request_id, "r1")
        for request in ("c1", "c2"):
            (again,) = self.one.send(data.Cancel(), "a", request, run)
            self.assertEqual((again.kind, again.session_seq), ("done", done.session_seq))
        states = [line for line in self.hub.box.log if read_line(line).kind == "status"]
        self.assertEqual(len(states), 1)

    def test_a_cancel_leaves_the_next_run_alone_B22(self) -> None:
        """It names its run, and that is over."""
        self.one.input("r1")
        first = self.run_id
        self.end()
        self.one.input("r2")
        self.one.send(data.Cancel(), "a", "c1", first)
        self.end()
        self.assertEqual(kinds(self.one.read())[-1], "done")
        status = data.read(self.one.frames[-1])
        assert isinstance(status, data.Done)
        self.assertEqual(status.status, "completed")

    def test_events_that_are_repeated_have_the_same_seq_and_content(self) -> None:
        """So that masters tell them by (session, seq)."""
        self.one.input("r1")
        self.end()
        self.one.read()
        late = Master(self.hub)
        late.attach(after=0)
        for attempt in (self.one, late):
            told = {each.session_seq: each.event for each in attempt.frames if each.session_seq}
            self.assertEqual(sorted(told), [1, 2, 3, 4])
        self.assertEqual(
            {e.session_seq: bytes(e.event.data) for e in self.one.frames if e.session_seq},
            {e.session_seq: bytes(e.event.data) for e in late.frames if e.session_seq},
        )


class BackpressureFailureAndReconnect(SessionCase):
    """Backpressure, failure, and reconnect."""

    def test_a_full_mailbox_is_busy_and_claims_nothing(self) -> None:
        """The same request is taken later; other attachments are not affected."""
        limit = DEFAULT_LIMITS.max_pending_requests_per_attachment
        for n in range(limit):
            self.one.input(f"r{n}")
        self.assertEqual(kinds(self.one.input("more"))[-1], "busy")
        self.assertFalse(self.hub.box.machine.knows("more"))
        self.assertNotIn("busy", kinds(self.two.input("theirs")))
        self.end()
        self.one.ack(max(self.one.facts()))
        self.assertNotIn("busy", kinds(self.one.input("more")))
        self.assertTrue(self.hub.box.machine.knows("more"))

    def test_pending_commands_are_bounded_I16(self) -> None:
        """One more than may be fails closed, the others wait."""
        self.one.input("r1")
        for _ in range(DEFAULT_LIMITS.max_pending_commands_per_attachment + 1):
            self.hub.spread(self.hub.box.ask(self.run_id, ASK))
        self.assertEqual(self.answers(), [Rejected("limit_exceeded")])

    def test_a_full_window_pauses_then_detaches_and_the_cursor_recovers_I34_B31(self) -> None:
        """No durable event is lost; the error names where to resume."""
        few = msgspec.structs.replace(DEFAULT_LIMITS, max_unacked_events_per_attachment=3)
        slow = Master(self.hub, few)
        slow.attach(after=0, mode="observe")
        self.one.input("r1")
        for n in range(10):
            self.say(f"{n}")
        slow.read()
        self.assertEqual(slow.facts(), [1, 2, 3])
        self.hub.pass_time(10.0)
        (error,) = slow.read()
        self.assertEqual(kinds([error]), ["slow_consumer"])
        self.assertIn("resume after 0", json.loads(bytes(error.event.data))["message"])
        slow.attach("again", 3, mode="observe")
        while slow.facts("again")[-1] < len(self.hub.box.log):
            slow.ack(slow.facts("again")[-1], "again")
        self.assertEqual(slow.facts("again"), list(range(4, len(self.hub.box.log) + 1)))

    def test_deltas_are_dropped_first_and_facts_never_B32(self) -> None:
        """To a master that reads nothing for a while."""
        self.one.stuck = True
        self.one.input("r1")
        for _ in range(100):
            self.emit(Delta("-", self.run_id, "x" * 10_000))
        self.say("kept")
        self.end()
        self.assertLess(self.one.machine.queued, 1_000_000)
        self.one.stuck = False
        self.one.machine.resumed()
        self.one.act([])
        self.one.read()
        self.assertEqual(self.one.facts(), [1, 2, 3, 4, 5])
        deltas = [each for each in self.one.frames if b'"delta"' in bytes(each.event.data)]
        self.assertLess(len(deltas), 100)

    def test_a_master_s_crash_leaves_execution_and_append_alone(self) -> None:
        """Its run is followed to the end by the other one."""
        self.one.input("r1")
        self.two.read()
        self.one.act(self.one.machine.peer_lost())
        self.say("still here")
        self.end()
        self.assertEqual(kinds(self.two.read()), ["event", "done"])

    def test_a_run_without_an_end_is_interrupted_and_not_run_again_B25(self) -> None:
        """One terminal fact, replayed to an identical retry; a further crash adds none."""
        self.one.input("r1")
        self.say("half")
        for _ in range(3):
            again = self.crash()
        again.attach(after=0)
        ends = [each for each in again.frames if each.kind == "done"]
        self.assertEqual([json.loads(bytes(e.event.data))["status"] for e in ends], ["interrupted"])
        got = again.input("r1")
        self.assertEqual([f.session_seq for f in got], [1, ends[0].session_seq])
        self.assertEqual([a for a in self.hub.box.actions if isinstance(a, StartRun)], [])

    def test_a_master_that_comes_back_after_a_crash_misses_nothing_B01_B05(self) -> None:
        """With its last processed cursor."""
        self.one.input("r1")
        self.say("one")
        self.one.read()
        cursor = max(self.one.facts())
        self.say("two")
        again = self.crash()
        again.attach(after=cursor)
        self.assertEqual(again.facts(), list(range(cursor + 1, len(self.hub.box.log) + 1)))

    def test_a_cursor_beyond_the_head_is_refused_I9(self) -> None:
        """A restored or foreign log; never a silent wait."""
        late = Master(self.hub)
        self.assertEqual(kinds(late.attach(after=5))[-1], "cursor_ahead")

    def test_a_log_that_takes_no_more_ends_the_session_for_all_I13(self) -> None:
        """session_io on each attachment; what failed was published to nobody."""
        self.one.input("r1")
        self.two.read()
        self.hub.box.holds = True
        self.say("never durable")
        self.hub.spread(self.hub.box.do(self.hub.box.machine.append_failed(Code.SESSION_IO, "x")))
        self.assertEqual(kinds(self.two.read()), ["session_io"])
        self.assertEqual(kinds(self.one.read())[-1], "session_io")
        self.assertEqual(self.one.machine.attachments, {})
        self.assertEqual(len([a for a in self.hub.box.actions if isinstance(a, Fail)]), 1)


class PeerAuthorizationAndSplitBrain(SynchronousTestCase):
    """Peer authorization and split brain."""

    def test_a_peer_is_known_before_anything_is_replied(self) -> None:
        """One that no rule lets in reads nothing, not even an error."""
        wire = Desk().call(Peer(4242, 4242, 1))
        self.assertEqual(wire.say(HELLO), [])

    def test_claims_are_no_authority(self) -> None:
        """A master_id, an origin or an owner that is named opens no other's session."""
        hub = Hub(rules=[Rule(uids=[2000])])
        guest = Master(hub, peer=GUEST)
        guest.read()
        self.assertEqual(kinds(guest.attach(owner=1000)), ["forbidden"])
        self.assertEqual(kinds(guest.attach(owner=2000)), ["attached"])
        (key,) = (each.key for each in guest.machine.attachments.values())
        self.assertEqual(key.owner, 2000)

    def test_each_attachment_is_judged_by_itself(self) -> None:
        """Agent, scope and session; the connection's others live."""
        hub = Hub()
        master = Master(hub)
        master.attach("good")
        master.read()
        where = data.Attach("echo", "shared", space="team")
        got = master.send(where, "bad", mode="observe", session="s", capabilities=("observe",))
        self.assertEqual(kinds(got), ["forbidden"])
        self.assertEqual(list(master.machine.attachments), ["good"])

    def test_a_host_with_a_rule_may_act_for_those_it_names_only_I15(self) -> None:
        """`delegate` and its owners."""
        rule = Rule(uids=[2000], delegate=True, owners=[1001])
        host = Master(Hub(rules=[rule]), peer=GUEST)
        host.read()
        self.assertEqual(kinds(host.attach("a", owner=1002)), ["forbidden"])
        self.assertEqual(kinds(host.attach("a", owner=1001)), ["attached"])
        (key,) = (each.key for each in host.machine.attachments.values())
        self.assertEqual(key.owner, 1001)

    def test_a_session_that_another_slave_owns_is_session_locked(self) -> None:
        """The contender serves nothing of it."""
        desk = Desk()
        wire = desk.call()
        wire.say(HELLO, attach())
        (key,) = desk.opened
        thief = Desk()
        thief.journals[key] = desk.journals[key]
        other = thief.call()
        got = other.say(HELLO, attach())
        self.assertEqual([each["event"]["kind"] for each in got], ["welcome", "error"])
        self.assertEqual(got[1]["event"]["data"]["code"], "session_locked")
        self.assertTrue(got[1]["event"]["data"]["retryable"])
