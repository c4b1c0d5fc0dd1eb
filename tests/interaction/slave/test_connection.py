"""A v2 connection: handshake, attachments, attribution, bounds, fairness."""

from __future__ import annotations

import msgspec
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.exchange import Accepted, Delta, Message, RequestApproval
from cortextx.interaction import data, v2
from cortextx.interaction.correlation import Correlation
from cortextx.interaction.data import DEFAULT_LIMITS
from cortextx.interaction.slave.policy import Rule
from cortextx.interfaces.sessions import Peer
from tests.interaction.slave.hub import Hub, Master, kinds

from msgspec import Raw  # isort: skip

OTHER = Peer(2000, 2000, 7)
SMALL = msgspec.structs.replace(
    DEFAULT_LIMITS,
    max_attachments=2,
    max_outbound_bytes_per_attachment=100_000,
    max_outbound_bytes_per_connection=300_000,
)


def run_of(hub: Hub) -> str:
    """The newest run."""
    return hub.box.started()[-1]


def say(hub: Hub, text: str, count: int = 1) -> None:
    """Output of the newest run."""
    for _ in range(count):
        hub.spread(hub.box.emit(run_of(hub), Message("r", run_of(hub), "assistant", text)))


class HandshakeTests(SynchronousTestCase):
    """hello and welcome."""

    def test_welcome_says_all_limits_I20(self) -> None:
        """The seven limits and that of a frame, flat in data, on the same connection."""
        (welcome,) = Master(Hub()).read()
        self.assertEqual((welcome.kind, welcome.correlation), ("welcome", Correlation("c")))
        self.assertEqual(data.read(welcome), DEFAULT_LIMITS)

    def test_a_foreign_connection_id_or_a_second_hello_ends_the_stream_I23(self) -> None:
        """One error, then the end."""
        for content, correlation, more in (
            (data.Detach(), Correlation("d", "a"), {}),
            (data.Hello((v2.ABI,)), Correlation("c"), {"capabilities": ("input",)}),
        ):
            master = Master(Hub())
            frame = data.build(content, correlation, **more)  # type: ignore[arg-type]
            master.send_line(v2.encode(frame)[:-1])
            self.assertEqual(kinds(master.frames), ["welcome", "bad_frame"])
            self.assertIsNotNone(master.closed)

    def test_an_oversize_line_ends_the_stream_I22(self) -> None:
        """Nothing is resynchronised (B34, as I22 rules)."""
        master = Master(Hub())
        master.act(master.machine.line_too_long())
        self.assertEqual(kinds(master.read()), ["welcome", "bad_frame"])
        self.assertIsNotNone(master.closed)
        self.assertEqual(master.attach(), [])


class AttachTests(SynchronousTestCase):
    """attach, attached, detach."""

    def test_attached_says_where_it_begins_I20_B20(self) -> None:
        """The head and the first seq that will come; without a cursor, from the head (B41)."""
        hub = Hub()
        first = Master(hub)
        first.attach()
        first.input("r1")
        for after, begin in ((None, 4), (0, 1), (2, 3), (3, 4)):
            master = Master(hub)
            attached = next(f for f in master.attach(after=after) if f.kind == "attached")
            told = data.read(attached)
            assert isinstance(told, data.Attached)
            self.assertEqual((told.replay_from, told.head), (begin, 3 if after != 9 else 0))
            self.assertEqual(master.facts(), list(range(begin, 4)))

    def setUp(self) -> None:
        self.hub = Hub()
        self.master = Master(self.hub, SMALL)

    def test_a_cursor_beyond_the_head_is_told_I9(self) -> None:
        """Never a silent wait; the attachment is not there afterwards."""
        self.assertEqual(kinds(self.master.attach(after=1))[-1], "cursor_ahead")
        self.assertEqual(kinds(self.master.attach(after=0)), ["attached"])

    def test_refusals_on_attach(self) -> None:
        """An id in use, one too many, an unknown agent, a bad name; the stream lives."""
        self.master.attach("a")
        self.assertEqual(kinds(self.master.attach("a")), ["duplicate_attachment"])
        self.master.attach("b")
        self.assertEqual(kinds(self.master.attach("c")), ["limit_exceeded"])
        self.master.send(data.Detach(), "b")
        self.assertEqual(kinds(self.master.attach("c", session="no/pe")), ["bad_frame"])
        got = self.master.send(
            data.Attach("nobody", "private"),
            "c",
            mode="observe",
            session="s",
            capabilities=("observe",),
        )
        self.assertEqual(kinds(got), ["unknown_agent"])
        self.assertEqual(kinds(self.master.attach("c")), ["attached"])

    def test_frames_for_no_attachment_are_told(self) -> None:
        """unknown_attachment, with the ids that were sent."""
        self.master.read()
        (error,) = self.master.input("r1", attachment="zz")
        self.assertEqual(kinds([error]), ["unknown_attachment"])
        self.assertEqual(error.correlation, Correlation("c", "zz", "r1"))

    def test_a_shape_fault_on_a_known_attachment_refuses_that_only_I23(self) -> None:
        """The stream lives, and so does the attachment."""
        self.master.attach("a")
        frame = v2.encode(data.build(data.Detach(), Correlation("c", "a")))
        wrong = frame.replace(b'"durable":false', b'"durable":7')
        self.assertEqual(kinds(self.master.send_line(wrong[:-1])), ["bad_frame"])
        self.assertEqual(kinds(self.master.input("r1"))[0], "accepted")

    def test_detach_in_the_middle_of_a_run_leaves_it_alone_B40(self) -> None:
        """A hundred times; the run and later runs are normal."""
        self.master.attach("w")
        self.master.input("r1", attachment="w")
        for n in range(100):
            self.master.attach(f"x{n}", 0)
            self.master.send(data.Detach(), f"x{n}")
            say(self.hub, "word")
            self.master.ack(self.master.read()[-1].session_seq or 0, "w")
        self.hub.spread(self.hub.box.end(run_of(self.hub)))
        self.assertEqual(self.master.read()[-1].kind, "done")
        self.assertEqual(list(self.master.machine.attachments), ["w"])

    def test_lost_facts_show_as_a_gap_I9_B38(self) -> None:
        """What retention took is told with exact bounds, then what is retained comes."""
        hub = self.hub
        self.master.attach("w")
        self.master.input("r1", attachment="w")
        read = hub.facts
        hub.facts = lambda after, *more: read(max(after, 2), *more)  # type: ignore[method-assign]
        got = self.master.attach("late", 0, mode="observe")
        gap = data.read(got[1])
        self.assertEqual(gap, data.Gap(1, 2, "retention"))
        self.assertEqual([f.session_seq for f in got[2:]], [3])


class AudienceTests(SynchronousTestCase):
    """Who gets what, and who may do what."""

    def setUp(self) -> None:
        self.hub = Hub()
        self.origin, self.other = Master(self.hub), Master(self.hub)
        self.origin.attach()
        self.other.attach()
        self.origin.input("r1")
        self.other.read()

    def test_deltas_and_commands_are_the_origins_only_B14(self) -> None:
        """Another master sees the facts, and cannot answer with a copied id."""
        run = run_of(self.hub)
        self.hub.spread(self.hub.box.emit(run, Delta("r", run, "d")))
        self.hub.spread(self.hub.box.ask(run, RequestApproval("t", Raw(b"{}")), "e1"))
        self.assertEqual(kinds(self.origin.read()), ["event", "command"])
        self.assertEqual(kinds(self.other.read()), [])
        answer = data.CommandResult(Accepted(), "e1")
        got = self.other.send(answer, "a", "r1", run, f"{run}.1")
        self.assertEqual(kinds(got), ["forbidden"])
        self.origin.send(answer, "a", "r1", run, f"{run}.1")
        self.assertEqual(kinds(self.other.read()), ["event"])

    def test_an_observer_may_not_act_I4(self) -> None:
        """input and cancel are refused."""
        watcher = Master(self.hub)
        watcher.attach(mode="observe")
        self.assertEqual(kinds(watcher.input("r9")), ["forbidden"])
        cancel = watcher.send(data.Cancel(), "a", "c1", run_of(self.hub))
        self.assertEqual(kinds(cancel), ["forbidden"])
        self.assertEqual(kinds(watcher.send(data.StatusRequest(), "a", "s1")), ["status"])

    def test_without_observe_only_ones_own_requests_are_seen(self) -> None:
        """An attachment that may only put in sees what it put in."""
        hub = self.hub
        hub.spread(hub.box.end(run_of(hub)))
        writer = Master(hub)
        writer.attach(capabilities=("input",))
        self.origin.input("r2")
        hub.spread(hub.box.end(run_of(hub)))
        writer.input("w1")
        hub.spread(hub.box.end(run_of(hub)))
        writer.read()
        requests = {f.correlation.request_id for f in writer.frames if f.session_seq}
        self.assertEqual(requests, {"w1"})
        self.assertEqual(kinds(writer.frames)[-1], "done")

    def test_a_retry_from_elsewhere_gets_the_same_facts_I10_I21(self) -> None:
        """accepted and done come again with their seqs; nothing runs twice."""
        run = run_of(self.hub)
        self.hub.spread(self.hub.box.end(run))
        late = Master(self.hub)
        late.attach()
        got = late.input("r1")
        self.assertEqual([(f.kind, f.session_seq) for f in got], [("accepted", 1), ("done", 4)])
        self.assertEqual(kinds(late.input("r1", "else")), ["request_conflict"])
        self.assertEqual(len(self.hub.box.started()), 1)

    def test_a_lost_connection_fails_its_commands_and_not_the_run_I11(self) -> None:
        """The run goes on without its origin."""
        run = run_of(self.hub)
        self.hub.spread(self.hub.box.ask(run, RequestApproval("t", Raw(b"{}"))))
        self.origin.act(self.origin.machine.peer_lost())
        self.assertIn(b"origin_lost", self.hub.box.log[-1])
        self.hub.spread(self.hub.box.end(run))
        self.assertEqual(kinds(self.other.read())[-1], "done")

    def test_changed_rules_are_asked_before_the_next_fact_I15(self) -> None:
        """An attachment that is no longer allowed gets nothing more."""
        hub = Hub(rules=[Rule(uids=[2000])])
        owner, guest = Master(hub), Master(hub, peer=OTHER)
        owner.attach()
        guest.attach()
        hub.policy.replace([])
        owner.input("r1")
        self.assertEqual(kinds(guest.read())[-1:], ["forbidden"])
        self.assertEqual(guest.facts(), [])
        self.assertEqual(kinds(owner.frames)[-1], "started" if hub.box.started() else "event")

    def test_acks_are_checked_I32(self) -> None:
        """Beyond what was sent: invalid_ack, and nothing changes."""
        self.assertEqual(kinds(self.origin.ack(99)), ["invalid_ack"])
        self.assertEqual(self.origin.ack(2), [])
        self.assertEqual(kinds(self.origin.ack(1)), ["invalid_ack"])


class SlowTests(SynchronousTestCase):
    """Backpressure (I16, I17, I34, B31)."""

    def test_a_master_that_does_not_read_costs_bounded_memory_B31(self) -> None:
        """What waits is bounded; it is let go with the seq to resume at; others see all."""
        hub = Hub()
        deaf, live = Master(hub, SMALL), Master(hub)
        live.attach()
        live.input("r1")
        deaf.stuck = True
        deaf.attach(after=0, mode="observe")
        for _ in range(60):
            say(hub, "x" * 10_000)
            live.ack(live.read()[-1].session_seq or 0)
            self.assertLess(deaf.machine.queued, 300_000)
        self.assertEqual(live.facts(), list(range(1, len(hub.box.log) + 1)))
        hub.pass_time(10.0)
        self.assertEqual(deaf.machine.attachments, {})
        self.assertLess(deaf.machine.queued, 200_000)
        deaf.stuck = False
        deaf.machine.resumed()
        deaf.act([])
        self.assertEqual(kinds(deaf.read())[-1], "slow_consumer")

    def test_too_much_on_a_connection_closes_it_I16(self) -> None:
        """Answers that nobody reads are bounded too."""
        hub = Hub()
        deaf = Master(hub, SMALL)
        deaf.attach()
        deaf.stuck = True
        for n in range(3000):
            deaf.act(deaf.machine.line_received(_status(n), hub.now))
            if deaf.closed is not None or not deaf.machine.attachments:
                break
            self.assertLess(deaf.machine.queued, 300_000)
        self.assertLess(n, 2999)

    def test_a_replay_does_not_delay_anothers_live_events_I17(self) -> None:
        """Between a fact's publication and its sending lies at most one batch of another."""
        hub = Hub()
        writer = Master(hub)
        writer.attach()
        writer.input("r1")
        for _ in range(40):
            say(hub, "x" * 20_000)
            writer.ack(writer.read()[-1].session_seq or 0)
        both = Master(hub)
        both.attach("live", mode="observe")
        both.stuck = True
        both.attach("replay", 0, mode="observe")
        say(hub, "now")
        sent: list[bytes] = []
        for _ in range(8):
            both.machine.resumed()
            both.act([])
            sent.append(b"".join(both.out[len(sent) :]))
        at = next(
            n
            for n, part in enumerate(sent)
            if b'"attachment_id":"live"' in part and b'"now"' in part
        )
        self.assertLessEqual(at, 3)

    def test_a_window_that_stays_full_is_a_slow_consumer_I34(self) -> None:
        """After ten seconds without an ack; an ack in time keeps the attachment."""
        hub = Hub()
        few = msgspec.structs.replace(DEFAULT_LIMITS, max_unacked_events_per_attachment=2)
        master, live = Master(hub, few), Master(hub)
        live.attach()
        master.attach(mode="observe")
        live.input("r1")
        self.assertEqual(master.read()[-1].session_seq, 2)
        hub.pass_time(9.0)
        master.ack(2)
        say(hub, "a", 3)
        hub.pass_time(9.0)
        self.assertNotIn("slow_consumer", kinds(master.read()))
        hub.pass_time(2.0)
        self.assertEqual(kinds(master.read()), ["slow_consumer"])


def _status(n: int) -> bytes:
    frame = data.build(data.StatusRequest(), Correlation("c", "a", f"s{n}"))
    return v2.encode(frame)[:-1]
