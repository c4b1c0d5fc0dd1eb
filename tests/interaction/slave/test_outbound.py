"""What waits on a connection: its bounds, its fairness, and who is too slow (I16, I17, I34)."""

from __future__ import annotations

import msgspec
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.exchange import Message
from cortextx.interaction import data, v2
from cortextx.interaction.correlation import Correlation
from cortextx.interaction.data import DEFAULT_LIMITS
from cortextx.interaction.slave.actions import Close, Known, OpenSession
from cortextx.interaction.slave.attachments import Walk
from cortextx.interaction.slave.connection import Connection
from cortextx.interaction.slave.policy import Rule, RulePolicy
from cortextx.interfaces.sessions import Peer
from tests.interaction.slave.hub import Hub, Master, kinds

GUEST = Peer(2000, 2000, 7)


def filled(count: int, size: int = 10_000, **more: object) -> Hub:
    """A session with one long run that is over."""
    hub = Hub(**more)  # type: ignore[arg-type]
    writer = Master(hub)
    writer.attach("w")
    writer.input("r1", attachment="w")
    run = hub.box.started()[-1]
    for _ in range(count):
        hub.spread(hub.box.emit(run, Message("r1", run, "assistant", "x" * size)))
    hub.spread(hub.box.end(run))
    writer.act(writer.machine.peer_lost())
    return hub


class BoundsTests(SynchronousTestCase):
    """I16: all that waits together."""

    def test_many_replays_at_once_wait_for_each_other_I16(self) -> None:
        """Twenty attachments that each may hold a fifth of the connection's bytes all come
        to the end over a transport that stops all the time; nothing is closed for it."""
        hub = filled(100)
        limits = msgspec.structs.replace(
            DEFAULT_LIMITS,
            max_outbound_bytes_per_attachment=200_000,
            max_outbound_bytes_per_connection=1_000_000,
        )
        master = Master(hub, limits)
        master.stuck = True
        most = 0
        for n in range(20):
            master.attach(f"a{n}", 0, mode="observe")
        for _ in range(3000):
            most = max(most, master.machine.queued)
            if not master.machine.is_paused:
                break
            master.machine.resumed()
            master.act([])
        master.read()
        self.assertIsNone(master.closed)
        self.assertLessEqual(most, 1_000_000)
        for n in range(20):
            self.assertEqual(master.facts(f"a{n}"), list(range(1, len(hub.box.log) + 1)))

    def test_repeats_of_old_requests_are_bounded_I16(self) -> None:
        """No more old facts are read for one attachment than it may have requests."""
        hub = filled(1)
        master = Master(hub)
        master.attach()
        (asker,) = (each.asker for each in master.machine.attachments.values())
        actions = [
            action
            for n in range(40)
            for action in master.machine.told(Known(asker, f"r{n}", "run", 1, 2), 0.0)
        ]
        self.assertEqual(len(actions), 32)
        master.act([])
        self.assertEqual(kinds(master.read())[-8:], ["busy"] * 8)


class SlowTests(SynchronousTestCase):
    """Who is too slow, and who is not."""

    def test_asking_for_the_status_is_no_acknowledgement_I34(self) -> None:
        """A window that stays full ends the attachment, whatever else is asked and taken."""
        hub = filled(10)
        few = msgspec.structs.replace(DEFAULT_LIMITS, max_unacked_events_per_attachment=2)
        master = Master(hub, few)
        master.attach(after=0, mode="observe")
        for n in range(4):
            hub.pass_time(3.0)
            master.send(data.StatusRequest(), "a", f"s{n}")
        self.assertIn("slow_consumer", kinds(master.frames))

    def test_who_reads_slowly_but_reads_is_not_let_go_I34(self) -> None:
        """Attachments wait long for their turn on a slow connection; it is not their fault
        as long as the transport sends something now and then."""
        hub = filled(60)
        master = Master(hub)
        master.stuck = True
        for n in range(8):
            master.attach(f"a{n}", 0, mode="observe")
        for _ in range(200):
            hub.pass_time(6.0)
            if not master.machine.is_paused:
                break
            master.machine.resumed()
            master.act([])
        master.read()
        self.assertNotIn("slow_consumer", kinds(master.frames))
        for n in range(8):
            self.assertEqual(master.facts(f"a{n}"), list(range(1, len(hub.box.log) + 1)))

    def test_a_full_window_and_a_full_transport_are_both_seen(self) -> None:
        """With all facts read, live content that cannot be written makes it wait too."""
        walk = Walk(cursor=0, head=0, window=1, max_bytes=1000, max_lines=5)
        walk.put_live(b"command", 0, droppable=False)
        self.assertTrue(walk.is_blocked(paused=True))
        self.assertFalse(walk.is_blocked(paused=False))

    def test_a_transport_that_takes_nothing_ends_the_connection(self) -> None:
        """Even if nothing of an attachment waits: after twice the time allowed."""
        master = Master(Hub())
        master.attach()
        master.machine.paused(0.0)
        self.assertEqual(master.machine.deadline, 20.0)
        self.assertEqual(master.machine.time_passed(19.9), [])
        self.assertEqual(master.machine.time_passed(20.0), [Close("nothing was read", True)])

    def test_the_end_is_said_once(self) -> None:
        """An adapter that asks again and again after a fault is not told again and again."""
        master = Master(Hub())
        master.act(master.machine.line_too_long())
        self.assertEqual(master.machine.output_sent(0.0), [])
        self.assertEqual(master.machine.peer_lost(), [Close("", True)])
        self.assertEqual(master.machine.output_sent(0.0), [])


class RulesTests(SynchronousTestCase):
    """I15: authorization is asked again before delivery."""

    def test_facts_that_wait_already_are_not_sent_under_new_rules_I15(self) -> None:
        """What was read under the old rules stays here once they allow it no more."""
        hub = filled(30, rules=[Rule(uids=[2000])])
        guest = Master(hub, peer=GUEST)
        guest.stuck = True
        guest.attach(after=0, mode="observe")
        guest.read()
        had = guest.facts()
        self.assertGreater(guest.machine.queued, 50_000)
        hub.policy.replace([])
        guest.stuck = False
        guest.machine.resumed()
        guest.act([])
        guest.read()
        self.assertEqual(guest.facts(), had)
        self.assertEqual(kinds(guest.frames)[-1], "forbidden")

    def test_rules_that_change_while_a_session_opens_count_I15(self) -> None:
        """It is not attached under rules that are gone."""
        policy = RulePolicy(1000, ["echo"], [Rule(uids=[2000])])
        machine = Connection(GUEST, policy, lambda: 5)
        machine.opened(
            data.build(data.Hello((v2.ABI,)), Correlation("c"), capabilities=("observe",))
        )
        frame = data.build(
            data.Attach("echo", "private"),
            Correlation("c", "a"),
            mode="observe",
            session="s",
            capabilities=("observe",),
        )
        actions = machine.line_received(v2.encode(frame)[:-1], 0.0)
        self.assertIsInstance(actions[0], OpenSession)
        policy.replace([])
        machine.session_opened(5, 1, 0, 0.0)
        sent = machine.data_to_send()
        self.assertIn(b'"forbidden"', sent)
        self.assertNotIn(b'"attached"', sent)
        self.assertEqual(machine.attachments, {})


class RepeatTests(SynchronousTestCase):
    """I10: the answer to a repeated request, in the order of the log."""

    def test_a_repeat_during_the_replay_brings_nothing_out_of_order_I10(self) -> None:
        """Facts that the replay still brings are not sent before their turn."""
        hub = filled(30)
        few = msgspec.structs.replace(DEFAULT_LIMITS, max_unacked_events_per_attachment=4)
        master = Master(hub, few)
        master.attach(after=0)
        master.input("r1")  # it ended at the log's end, far beyond the window
        self.assertEqual(master.facts(), [1, 2, 3, 4, 1])
        while master.facts()[-1] < len(hub.box.log):
            master.ack(max(master.facts()))
        self.assertEqual(master.facts()[5:], list(range(5, len(hub.box.log) + 1)))

    def test_an_attachment_without_observe_gets_a_repeat_that_it_passed_over(self) -> None:
        """Its own request of an earlier connection comes by asking for it again."""
        hub = filled(2)
        writer = Master(hub)
        writer.attach(after=0, capabilities=("input",))
        self.assertEqual(writer.facts(), [])
        got = writer.input("r1")
        self.assertEqual([f.session_seq for f in got], [1, len(hub.box.log)])
