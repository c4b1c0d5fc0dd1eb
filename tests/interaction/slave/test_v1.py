"""A v1 connection beyond the contract's words: its bounds, the rules, and what retention took."""

from __future__ import annotations

from typing import Any

from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core import exchange as x
from cortextx.interaction import v1
from cortextx.interaction.slave.actions import Facts, Fetch, Known
from cortextx.interaction.slave.lines import tail_of
from cortextx.interaction.slave.policy import Rule
from cortextx.interaction.slave.v1_service import MAX_BYTES, MAX_COMPLAINTS, V1Connection
from cortextx.interfaces.sessions import Peer
from tests.interaction.slave.hub import ME, Hub, Master
from tests.interaction.slave.v1_client import V1Client, an_input, names

OTHER = Peer(2000, 2000, 43)


class Bounds(SynchronousTestCase):
    def setUp(self) -> None:
        self.hub = Hub()
        self.client = V1Client(self.hub, an_input("r1"))
        (self.run_id,) = self.hub.box.started()

    def emit(self, *events: Any) -> None:
        self.hub.spread(self.hub.box.emit(self.run_id, *events))

    def test_faults_are_told_so_often_and_no_oftener(self) -> None:
        """A client that sends rubbish without end costs a few lines; its commands fail closed."""
        before = len(self.client.lines)
        for _ in range(10 * MAX_COMPLAINTS):
            self.client.say(b"rubbish")
        self.assertEqual(len(self.client.lines) - before, MAX_COMPLAINTS + 1)
        self.assertIn("nothing more is taken", self.client.values()[-1]["message"])
        self.hub.spread(self.hub.box.ask(self.run_id, x.RequestInput("?")))
        self.assertEqual(self.hub.box.machine.deadline, None)
        self.hub.spread(self.hub.box.end(self.run_id))
        self.assertEqual(names(self.client)[-1], "done")

    def test_the_end_is_said_once(self) -> None:
        """However often it is asked, the adapter is told once to close."""
        self.hub.spread(self.hub.box.end(self.run_id))
        self.assertTrue(self.client.is_closed)
        self.assertEqual(self.client.machine.output_sent(0.0), [])

    def test_a_line_too_long_ends_what_is_taken(self) -> None:
        """EMSGSIZE, and the stream goes on."""
        self.client.act(self.client.machine.line_too_long())
        self.assertEqual(names(self.client)[-1], "error EMSGSIZE")
        self.hub.spread(self.hub.box.end(self.run_id))
        self.assertEqual(names(self.client)[-1], "done")

    def test_a_client_that_does_not_read_holds_little_and_is_let_go_I34_B31(self) -> None:
        """Its page waits, its deltas go; after the pause it is closed, and the run goes on."""
        self.client.stuck = True
        self.emit(x.Delta("-", self.run_id, "first"))
        for _ in range(100):
            self.emit(x.Delta("-", self.run_id, "d" * 50_000))
            self.emit(x.Message("-", self.run_id, "assistant", "m" * 50_000))
        walk = self.client.machine._walk
        self.assertLess(walk.queued, MAX_BYTES + 300_000)
        self.hub.pass_time(9.0)
        self.assertFalse(self.client.is_closed)
        self.hub.pass_time(1.1)
        assert self.client.closed is not None
        self.assertTrue(self.client.closed.abort)
        self.hub.spread(self.hub.box.end(self.run_id))
        again = V1Client(self.hub, an_input("r1"))
        self.assertEqual(names(again).count("message"), 100)

    def test_nothing_durable_is_dropped_for_a_slow_client_B32(self) -> None:
        """Who reads on in time has every fact, in order; only deltas are missing."""
        self.client.stuck = True
        for _ in range(60):
            self.emit(x.Delta("-", self.run_id, "d" * 50_000))
            self.emit(x.Message("-", self.run_id, "assistant", "m" * 50_000))
        self.hub.spread(self.hub.box.end(self.run_id))
        self.client.stuck = False
        self.client.machine.resumed()
        self.client.act([])
        seqs = [seq for seq in self.client.seqs() if seq is not None]
        self.assertEqual(seqs, [1, *range(3, 65)])
        self.assertTrue(self.client.is_closed)


class Rules(SynchronousTestCase):
    def test_what_a_rule_does_not_give_is_done_without(self) -> None:
        """An input needs input and observe; without command_result its commands fail closed."""
        hub = Hub(rules=[Rule(uids=[2000], capabilities=["input", "observe"])])
        hub.box.machine.key = type(hub.box.machine.key)(
            agent="echo", scope="private", session="default", owner=2000
        )
        client = V1Client(hub, an_input("r1"), peer=OTHER)
        (run,) = hub.box.started()
        hub.spread(hub.box.ask(run, x.RequestApproval("sh", Raw(b"{}"))))
        resolved = [a.result for a in hub.box.actions if type(a).__name__ == "Resolve"]
        self.assertEqual([type(result) for result in resolved], [x.Rejected])
        client.answer("cmd-1")
        self.assertEqual(names(client)[-1], "error EACCES")

    def test_who_no_rule_lets_in_is_refused(self) -> None:
        """EACCES, and no session is opened."""
        for rules in ([], [Rule(uids=[2000], mode="observe")], [Rule(uids=[1])]):
            hub = Hub(rules=rules)
            client = V1Client(hub, an_input("r1"), peer=OTHER)
            self.assertEqual(names(client), ["error EACCES"])
            self.assertEqual((client.is_closed, hub.box.started()), (True, []))

    def test_a_rule_that_goes_ends_the_stream_I15(self) -> None:
        """The rules are asked again before a delivery once they have changed."""
        hub = Hub(rules=[Rule(uids=[2000])])
        hub.box.machine.key = type(hub.box.machine.key)(
            agent="echo", scope="private", session="default", owner=2000
        )
        client = V1Client(hub, an_input("r1"), peer=OTHER)
        (run,) = hub.box.started()
        hub.policy.replace([Rule(uids=[2000]), Rule(uids=[5])])
        hub.spread(hub.box.emit(run, x.Message("-", run, "assistant", "one")))
        self.assertEqual(names(client)[-1], "message")
        hub.policy.replace([])
        hub.spread(hub.box.emit(run, x.Message("-", run, "assistant", "two")))
        self.assertEqual(names(client)[-1], "error EACCES")
        self.assertTrue(client.is_closed)
        self.assertNotIn("two", b"".join(client.lines).decode())

    def test_a_cancel_of_anothers_run_is_a_cancel_of_none(self) -> None:
        """ESRCH: whether there is such a run is nobody's business."""
        hub = Hub(rules=[Rule(uids=[2000])])
        V1Client(hub, an_input("r1"))
        (run,) = hub.box.started()
        cancel = V1Client(hub, v1.Cancel("c1", run), peer=OTHER)
        self.assertEqual(names(cancel), ["error ESRCH"])


class Retention(SynchronousTestCase):
    def connection(self, request: v1.Request, first: int, head: int) -> tuple[V1Connection, int]:
        hub = Hub()
        machine = V1Connection(
            ME, hub.policy, lambda: 7, default_agent="echo",
            find_run=lambda *_: hub.box.machine.key, fresh_id="req-f",
        )  # fmt: skip
        machine.opened(request)
        machine.session_opened(7, first, head, 0.0)
        return machine, 7

    def finished(self) -> list[bytes]:
        """A log of one run that is over."""
        hub = Hub()
        V1Client(hub, an_input("r1"))
        (run,) = hub.box.started()
        hub.spread(hub.box.emit(run, *(x.Message("-", run, "assistant", "m") for _ in range(5))))
        hub.spread(hub.box.end(run))
        return hub.box.log

    def test_an_answer_that_is_no_more_retained_is_fetched_I38(self) -> None:
        """Even where the log was trimmed after the session was opened."""
        log = self.finished()
        machine, asker = self.connection(an_input("r1"), 1, 30)
        machine.told(Known(asker, "r1", "run-0001", 1, len(log)), 0.0)
        late = Facts(20, log[:1], [tail_of(log[0])])
        actions = machine.page_read(asker, late, 0.0)
        self.assertEqual(actions, [Fetch(asker, [1, len(log)])])
        found = [log[0], log[-1]]
        machine.fetched(asker, Facts(1, found, [tail_of(line) for line in found]))
        said = machine.data_to_send().splitlines(keepends=True)
        events = [v1.decode_reply(line, "r1") for line in said]
        self.assertEqual([type(e.event) for e in events if e], [x.RunAccepted, x.RunDone])
        self.assertTrue(machine.is_closing)

    def test_a_resume_below_what_is_retained_is_told_of_the_gap_I9_B38(self) -> None:
        """An error that does not end the stream, with the bounds; then what there is."""
        log = self.finished()
        machine, asker = self.connection(v1.Resume("r2", "default", "0"), 5, len(log))
        facts = Facts(5, log[4:], [tail_of(line) for line in log[4:]])
        machine.page_read(asker, facts, 0.0)
        said = machine.data_to_send().splitlines(keepends=True)
        replies = [v1.decode_reply(line, "r2") for line in said]
        gap = replies[0]
        assert gap is not None
        self.assertEqual(
            gap.event,
            x.Failure(
                "r2", code="ERANGE", message="events 1 to 4 are not retained", retryable=True
            ),
        )
        self.assertEqual([r.session_seq for r in replies[1:] if r], list(range(5, len(log) + 1)))


class Beside(SynchronousTestCase):
    def test_v1_and_v2_share_a_session(self) -> None:
        """A v2 observer sees a v1 client's run, without its deltas and commands."""
        hub = Hub()
        master = Master(hub)
        master.attach(mode="observe")
        V1Client(hub, an_input("r1"))
        (run,) = hub.box.started()
        hub.spread(hub.box.emit(run, x.Delta("-", run, "d"), x.Message("-", run, "assistant", "m")))
        hub.spread(hub.box.ask(run, x.RequestInput("?")))
        hub.spread(hub.box.end(run))
        master.read()
        self.assertEqual(master.facts(), list(range(1, len(hub.box.log) + 1)))
        self.assertNotIn("command", {frame.kind for frame in master.frames})
