"""The slave's sessions: opened once, unloaded when idle, and ended in order."""

from __future__ import annotations

import json

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from cortextx.interfaces.sessions import SessionKey
from tests.interaction.slave.desk import HELLO, Desk, Wire, attach

KEY = SessionKey(agent="echo", scope="private", session="default", owner=1000)


def send(text: str = "hi", **more: str) -> dict[str, str]:
    """A flat request."""
    return {"op": "send", "input": text, **more}


class Sessions(SynchronousTestCase):
    def test_a_session_is_opened_once_B19(self) -> None:
        """Whoever asks second joins the first."""
        desk = Desk()
        desk.call().say(HELLO, attach())
        desk.call().say(HELLO, attach())
        desk.call().say(send())
        desk.wait()
        self.assertEqual(desk.opened, [KEY])

    def test_idle_sessions_are_unloaded_and_come_back_I14(self) -> None:
        """Without readers and runs a session goes after a while, and its log is as it was."""
        desk = Desk()
        wire = desk.call()
        wire.say(send())
        desk.wait()
        wire.hang_up()
        desk.clock.advance(59)
        self.assertEqual(list(desk.service.sessions), [KEY])
        desk.clock.advance(2)
        self.assertEqual(list(desk.service.sessions), [])
        again = desk.call().say({"op": "resume"})
        self.assertEqual([said["session_seq"] for said in again], [1, 2, 3, 4, 5])
        self.assertEqual(desk.opened, [KEY, KEY])

    def test_a_reader_keeps_its_session(self) -> None:
        """As does a run; who comes in time stops the clock."""
        desk = Desk(delay=100.0)
        wire = desk.call()
        wire.say(HELLO, attach())
        desk.clock.advance(600)
        self.assertEqual(list(desk.service.sessions), [KEY])
        other = desk.call()
        other.say(send())
        wire.hang_up()
        other.hang_up()
        desk.clock.advance(99)
        self.assertEqual(list(desk.service.sessions), [KEY])
        desk.clock.advance(1)
        desk.clock.advance(100)
        desk.clock.advance(30)
        late = desk.call()
        late.say(HELLO, attach())
        desk.clock.advance(600)
        self.assertEqual(list(desk.service.sessions), [KEY])

    def test_no_more_sessions_than_may_be_open(self) -> None:
        """One at rest makes room; where none is, whoever asks is refused, and may try again."""
        desk = Desk(max_sessions=2)
        first, second, third = desk.call(), desk.call(), desk.call()
        first.say(HELLO, attach("one"))
        second.say(HELLO, attach("two"))
        _, refused = third.say(HELLO, attach("three"))
        self.assertEqual(refused["event"]["data"]["code"], "limit_exceeded")
        self.assertTrue(refused["event"]["data"]["retryable"])
        first.hang_up()
        (attached,) = third.say(attach("three"))
        self.assertEqual(attached["event"]["kind"], "attached")
        self.assertEqual({key.session for key in desk.service.sessions}, {"two", "three"})

    def test_an_id_of_another_open_session_is_a_conflict_I21(self) -> None:
        """As far as sessions of the same agent and owner are open here."""
        desk = Desk(delay=1.0)
        desk.call().say(send(id="r1"))
        (said,) = desk.call().say(send(id="r1", session="two"))
        self.assertEqual((said["type"], said["code"]), ("error", "EINVAL"))
        other = desk.call().say(send(id="r1", agent="other"))
        self.assertEqual(other[0]["type"], "accepted")

    def test_a_flat_cancel_finds_its_run(self) -> None:
        """In whatever session that is open; the run ends within the second."""
        desk = Desk(delay=5.0)
        wire = desk.call()
        accepted = wire.say(send(session="three"))[0]
        cancel = desk.call()
        told = cancel.say({"op": "cancel", "id": accepted["run"]})
        desk.wait(1.0)
        self.assertEqual([*told, *cancel.read()][-1]["status"], "cancelled")
        self.assertEqual(wire.read()[-1]["status"], "cancelled")
        self.assertTrue(cancel.is_closed and wire.is_closed)

    def test_runs_of_sessions_go_side_by_side_I19_I29(self) -> None:
        """One at a time in a session, and none waits for another session's."""
        desk = Desk(delay=1.0)
        wires = [desk.call() for _ in range(3)]
        wires[0].say(send("a", session="one"))
        wires[1].say(send("b", session="one"))
        wires[2].say(send("c", session="two"))
        desk.wait(2.5)
        done = [any(said["type"] == "done" for said in wire.read()) for wire in wires]
        self.assertEqual(done, [True, False, True])


class Stopping(SynchronousTestCase):
    def over(self, done: Deferred[None], *wires: Wire) -> None:
        """The peers go, and then all is over."""
        self.assertNoResult(done)
        for wire in wires:
            wire.hang_up()
        self.successResultOf(done)

    def test_runs_end_as_interrupted_and_are_told_so(self) -> None:
        """The one that runs and those that wait; nobody asked for them to be cancelled."""
        desk = Desk(delay=5.0)
        wires = [desk.call(), desk.call()]
        first = [wires[0].say(send("a b")), wires[1].say(send("c"))]
        desk.wait()
        first = [said + wire.read() for said, wire in zip(first, wires, strict=True)]
        self.assertEqual([said[0]["type"] for said in first], ["accepted", "accepted"])
        done = desk.service.stopService()
        for wire in wires:
            said = wire.read()[-1]
            self.assertEqual((said["type"], said["code"]), ("error", "EIO"))
            self.assertIn("stops", said["message"])
            self.assertTrue(wire.is_closed)
            self.assertFalse(wire.is_aborted)
        self.over(done, *wires)
        lines = [json.loads(line) for line in desk.journals[KEY]._lines]
        ends = [
            line["event"]["data"]["status"] for line in lines if line["event"]["kind"] == "done"
        ]
        self.assertEqual(ends, ["interrupted", "interrupted"])
        self.assertEqual(sum(line["event"]["kind"] == "started" for line in lines), 1)

    def test_a_pending_approval_is_no_yes(self) -> None:
        """A run that waits for an answer ends without it."""
        desk = Desk(approve=True)
        wire = desk.call()
        wire.say(send())
        done = desk.service.stopService()
        self.assertEqual(wire.read()[-1]["type"], "error")
        self.over(done, wire)
        self.assertNotIn(b'"text":"hi"', b"".join(desk.journals[KEY]._lines[3:]))

    def test_nothing_new_is_begun(self) -> None:
        """While it stops nobody is let in, and no session is opened."""
        desk = Desk(delay=5.0)
        wire = desk.call()
        wire.say(HELLO)
        done = desk.service.stopService()
        said = wire.say(attach())
        self.assertEqual([each["event"]["data"].get("code") for each in said], [])
        late = desk.call()
        self.assertTrue(late.is_aborted)
        self.assertEqual(desk.opened, [])
        late.hang_up()
        self.over(done, wire)

    def test_a_peer_that_does_not_go_is_cut(self) -> None:
        """Stopping takes a bounded time."""
        desk = Desk()
        wire = desk.call()
        wire.say(HELLO, attach())
        done = desk.service.stopService()
        self.assertNoResult(done)
        desk.clock.advance(5.1)
        self.assertTrue(wire.is_aborted)
        wire.hang_up()
        self.successResultOf(done)
