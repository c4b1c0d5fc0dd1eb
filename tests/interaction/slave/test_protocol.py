"""A connection: who is let in, lines out of bytes, backpressure, and its end."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from cortextx.interaction.faults import MAX_FRAME_BYTES
from cortextx.interaction.slave.policy import Rule
from cortextx.interfaces.sessions import Peer
from tests.interaction.slave.desk import HELLO, Desk, attach

OTHER = Peer(2000, 2000, 43)


class Entering(SynchronousTestCase):
    def test_who_may_not_come_in_reads_nothing_I15(self) -> None:
        """The kernel's word comes before any reply; the connection is cut."""
        desk = Desk()
        wire = desk.call(OTHER)
        wire.protocol.dataReceived(HELLO)
        self.assertEqual(wire.raw(), b"")
        self.assertTrue(wire.is_aborted)
        self.assertEqual(desk.service.connections, set())

    def test_a_rule_lets_others_in(self) -> None:
        """With it the same peer is welcome."""
        wire = Desk(Rule(uids=[2000])).call(OTHER)
        (welcome,) = wire.say(HELLO)
        self.assertEqual(welcome["event"]["kind"], "welcome")

    def test_no_more_than_may(self) -> None:
        """Beyond max_connections nobody is served, until one goes."""
        desk = Desk(max_connections=2)
        first, _, third = desk.call(), desk.call(), desk.call()
        self.assertTrue(third.is_aborted)
        third.hang_up()
        first.hang_up()
        self.assertEqual(len(desk.call().say(HELLO)), 1)

    def test_who_says_nothing_is_let_go(self) -> None:
        """A connection without a first line is closed after a while."""
        desk = Desk(hello_seconds=30.0)
        silent, slow = desk.call(), desk.call()
        slow.protocol.dataReceived(HELLO[:50])
        desk.clock.advance(29)
        self.assertFalse(silent.is_closed or slow.is_closed)
        desk.clock.advance(2)
        self.assertTrue(silent.is_closed and slow.is_closed)

    def test_who_said_hello_may_be_silent(self) -> None:
        """A stream has no time-out of its own."""
        desk = Desk(hello_seconds=30.0)
        wire = desk.call()
        wire.say(HELLO)
        desk.clock.advance(3600)
        self.assertFalse(wire.is_closed)


class Lines(SynchronousTestCase):
    def test_however_the_bytes_come(self) -> None:
        """One at a time or all at once, the answers are the same."""
        said = HELLO + attach()
        whole, single = Desk().call(), Desk().call()
        whole.protocol.dataReceived(said)
        for at in range(len(said)):
            single.protocol.dataReceived(said[at : at + 1])
        first = whole.raw()
        self.assertEqual(first.count(b"\n"), 2)
        self.assertEqual(first, single.raw())

    def test_garbage_first_I28(self) -> None:
        """What begins with a brace gets a flat EINVAL, other things nothing; both are closed."""
        wire = Desk().call()
        (said,) = wire.say(b"{nonsense\n")
        self.assertEqual((said["type"], said["code"]), ("error", "EINVAL"))
        self.assertTrue(wire.is_closed)
        silent = Desk().call()
        self.assertEqual(silent.say(b"GET / HTTP/1.1\r\n"), [])
        self.assertTrue(silent.is_closed)

    def test_a_flood_without_a_newline_B34_I22(self) -> None:
        """It is cut at the bound, and held no further."""
        for begin, answers in ((b'{"op":"', ["EMSGSIZE"]), (b"x", [])):
            wire = Desk().call()
            wire.protocol.dataReceived(begin)
            for _ in range(MAX_FRAME_BYTES // 4096 + 5):
                wire.protocol.dataReceived(b"x" * 4096)
            self.assertEqual([said["code"] for said in wire.read()], answers)
            self.assertTrue(wire.is_closed)

    def test_on_a_stream_too_long_is_an_error_and_the_end_I22(self) -> None:
        """bad_frame, then close: nothing is resynchronised."""
        wire = Desk().call()
        wire.say(HELLO)
        (said,) = wire.say(b"x" * (MAX_FRAME_BYTES + 1))
        self.assertEqual(said["event"]["data"]["code"], "bad_frame")
        self.assertTrue(wire.is_closed)
        self.assertEqual(wire.say(attach()), [])

    def test_an_incomplete_last_line_says_nothing(self) -> None:
        """Half a frame at the end of the stream is no frame."""
        desk = Desk()
        wire = desk.call()
        wire.say(HELLO)
        wire.protocol.dataReceived(attach()[:-1])
        wire.protocol.readConnectionLost()
        wire.hang_up()
        self.assertEqual(desk.opened, [])


class Ending(SynchronousTestCase):
    def test_a_v1_stream_ends_with_the_connection(self) -> None:
        """All that was said is written before it is closed."""
        desk = Desk()
        wire = desk.call()
        wire.say({"op": "send", "input": "hello there"})
        desk.wait()
        self.assertEqual(
            [said["type"] for said in wire.read()], ["delta", "delta", "message", "done"]
        )
        self.assertTrue(wire.is_closed)
        self.assertFalse(wire.is_aborted)

    def test_half_close_before_the_answer_I35(self) -> None:
        """`echo … | nc -N` has its whole stream."""
        desk = Desk(delay=1.0)
        wire = desk.call()
        wire.say({"op": "send", "input": "hi"})
        wire.protocol.readConnectionLost()
        desk.wait(3.0)
        self.assertEqual([said["type"] for said in wire.read()], ["delta", "message", "done"])
        self.assertTrue(wire.is_closed)

    def test_half_close_before_anything(self) -> None:
        """There is nothing to answer."""
        wire = Desk().call()
        wire.protocol.readConnectionLost()
        self.assertTrue(wire.is_closed)

    def test_who_does_not_read_the_rest_is_cut(self) -> None:
        """A closed connection whose peer takes nothing more does not stay."""
        desk = Desk(slow_seconds=10.0)
        wire = desk.call()
        wire.say({"op": "ping"})
        self.assertTrue(wire.is_closed)
        self.assertFalse(wire.is_aborted)
        desk.clock.advance(10.5)
        self.assertTrue(wire.is_aborted)

    def test_no_timer_is_left(self) -> None:
        """Once the peer is gone, so is all that waited for it."""
        desk = Desk()
        for said in (b"", HELLO, HELLO + attach(), b'{"op":"ping"}\n'):
            wire = desk.call()
            wire.protocol.dataReceived(said)
            wire.hang_up()
        desk.clock.advance(60)
        self.assertEqual(desk.clock.getDelayedCalls(), [])
        self.assertEqual(desk.service.connections, set())

    def test_while_the_transport_is_full_nothing_is_written(self) -> None:
        """What is said meanwhile waits with us, and comes once there is room."""
        desk = Desk()
        wire = desk.call()
        wire.say(HELLO, attach())
        wire.protocol.pauseProducing()
        other = desk.call()
        other.say({"op": "send", "input": "hello"})
        desk.wait()
        self.assertEqual(wire.raw(), b"")
        wire.protocol.resumeProducing()
        self.assertEqual([said["session_seq"] for said in wire.read()], [1, 2, 3, 4, 5])
