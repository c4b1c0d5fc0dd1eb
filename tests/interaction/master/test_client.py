"""The adapters, over a reactor and transports in memory."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from msgspec import Raw
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError, ConnectionDone
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.backoff import FullJitter
from cortextx.core.exchange import Invoke, Origin, RunDone
from cortextx.errors import SessionRefused, SlaveUnavailable
from cortextx.interaction import data, v1, v2
from cortextx.interaction.correlation import Correlation
from cortextx.interaction.data import DEFAULT_LIMITS, Accepted, Done, Error, Message
from cortextx.interaction.faults import Code
from cortextx.interaction.master.client import Master, Session
from cortextx.interaction.master.effects import MemoryEffects
from cortextx.interaction.master.events import Attached, Disconnected, Event
from cortextx.interaction.master.once_client import Stream, ask_once

PATH = "/run/slave.sock"
ME = 1000


class Slave:
    """The other end of a connection; `uid` is who runs it."""

    def __init__(self, reactor: MemoryReactorClock, uid: int = ME) -> None:
        address, factory, *_ = reactor.unixClients.pop(0)
        assert address == PATH, address
        self.transport = StringTransport()
        self.transport.uid = uid  # type: ignore[attr-defined]
        self.protocol = factory.buildProtocol(None)
        self.protocol.makeConnection(self.transport)

    @property
    def frames(self) -> list[v2.Frame]:
        """What the master wrote."""
        lines = self.transport.value().splitlines(keepends=True)
        return [v2.decode(line, "master") for line in lines]

    def say(self, content: data.Data, *ids: str, seq: int | None = None, **more: Any) -> None:
        """Send a frame."""
        connection = self.frames[0].correlation.connection_id
        frame = data.build(content, Correlation(connection, *ids), session_seq=seq, **more)
        self.protocol.dataReceived(v2.encode(frame))

    def welcome(self) -> None:
        """Answer the hello."""
        self.say(DEFAULT_LIMITS, capabilities=("input",))

    def attach(self, head: int = 0) -> str:
        """Answer the newest attach."""
        frame = self.frames[-1]
        body = frame.event
        wire = frame.correlation.attachment_id or ""
        content = data.Attached("echo", "private", head + 1, head)
        self.say(
            content, wire, mode=body.mode, session=body.session, capabilities=body.capabilities
        )
        return wire

    def lose(self) -> None:
        """Close the connection."""
        self.protocol.connectionLost(Failure(ConnectionDone()))


class ClientTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()
        self.effects = MemoryEffects()
        self.master = Master(
            self.reactor,
            PATH,
            slave_uids=[ME],
            effects=self.effects,
            backoff=FullJitter(random=lambda: 0.5),
            uid_of=lambda transport: int(transport.uid),
        )

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> Deferred[Any]:
        """Start a coroutine."""
        return Deferred.fromCoroutine(coroutine)

    def session(self) -> tuple[Session, Slave, str]:
        """An attachment, and the slave that it is to."""
        waiting = self.master.attach("echo")
        slave = Slave(self.reactor)
        slave.welcome()
        wire = slave.attach()
        return self.successResultOf(waiting), slave, wire

    def next(self, session: Session) -> Event:
        """The next event, which is there."""
        event = self.successResultOf(session.next_event())
        assert event is not None
        return event

    def test_nothing_is_said_to_a_slave_of_somebody_else(self) -> None:
        """v2, peer authorization: the master verifies the slave's UID first (I15)."""
        waiting = self.master.attach("echo")
        slave = Slave(self.reactor, uid=1001)
        self.assertEqual(slave.transport.value(), b"")
        self.assertTrue(slave.transport.disconnecting)
        failure = self.failureResultOf(waiting, SessionRefused)
        self.assertEqual(failure.value.code, "unauthenticated")
        self.assertIn("1001", str(failure.value))
        self.reactor.advance(100)
        self.assertEqual(self.reactor.unixClients, [])

    def test_connect_says_that_there_is_no_slave(self) -> None:
        """An application that cannot wait is told at once, and where it looked."""
        waiting = self.master.connect()
        _, factory, *_ = self.reactor.unixClients.pop(0)
        factory.clientConnectionFailed(None, Failure(ConnectError(string="nobody")))
        failure = self.failureResultOf(waiting, SlaveUnavailable)
        self.assertIn(PATH, str(failure.value))

    def test_a_run_from_its_words_to_its_end(self) -> None:
        """input gives the run once it is accepted; its end is told to whoever asks."""
        session, slave, wire = self.session()
        asked = self.begin(session.input("hi"))
        request = slave.frames[-1].correlation.request_id or ""
        self.assertEqual(slave.frames[-1].event.origin, Origin("cortextx"))
        self.assertNoResult(asked)
        slave.say(Accepted(), wire, request, "run", seq=1)
        run = self.successResultOf(asked)
        self.assertEqual((run.request_id, run.run_id), (request, "run"))
        ended = [run.ended(), run.ended()]
        slave.say(Done("completed"), wire, request, "run", seq=2)
        self.assertEqual([self.successResultOf(each) for each in ended], [Done("completed")] * 2)
        self.assertEqual(self.successResultOf(run.ended()), Done("completed"))

    def test_a_refused_input_raises(self) -> None:
        """I7: the code and whether to try again come through."""
        session, slave, wire = self.session()
        asked = self.begin(session.input("hi"))
        request = slave.frames[-1].correlation.request_id or ""
        slave.say(Error.of(Code.BUSY, "full"), wire, request)
        failure = self.failureResultOf(asked, SessionRefused)
        self.assertEqual((failure.value.code, failure.value.retryable), ("busy", True))

    def test_an_event_is_dealt_with_when_the_next_is_asked_for(self) -> None:
        """v2: acknowledged is what was processed, a little later and all in one."""
        session, slave, wire = self.session()
        for seq in (1, 2):
            slave.say(Message("user", "x"), wire, "r", "u", seq=seq)
        self.assertEqual(type(self.next(session).content), Attached)
        self.next(session)
        self.next(session)
        self.assertEqual(session.cursor, 1)
        waiting = session.next_event()
        self.assertNoResult(waiting)
        self.assertEqual(session.cursor, 2)
        self.reactor.advance(0.2)
        self.assertEqual([f.session_seq for f in slave.frames if f.kind == "ack"], [2])
        waiting.cancel()
        self.failureResultOf(waiting)
        slave.say(Message("user", "y"), wire, "r", "u", seq=3)
        self.assertEqual(self.next(session).content, Message("user", "y"))

    def test_it_comes_back_by_itself(self) -> None:
        """v2, reconnect: the iteration goes on over a new connection."""
        session, slave, _ = self.session()
        self.next(session)
        slave.lose()
        self.assertEqual(type(self.next(session).content), Disconnected)
        self.assertFalse(self.master.is_connected)
        self.reactor.advance(0.5)
        again = Slave(self.reactor)
        again.welcome()
        again.attach()
        event = self.next(session)
        assert isinstance(event.content, Attached)
        self.assertTrue(event.content.resumed)

    def test_detach_ends_the_iteration(self) -> None:
        """Who waits for the next event is told that there is none."""
        session, slave, _ = self.session()
        self.next(session)
        waiting = session.next_event()
        session.detach()
        self.assertIsNone(self.successResultOf(waiting))
        self.assertIsNone(self.successResultOf(session.next_event()))
        self.assertEqual(slave.frames[-1].kind, "detach")
        self.failureResultOf(self.begin(session.input("x")), SessionRefused)

    def test_closing_ends_the_iteration_and_leaves_no_timer(self) -> None:
        """Detached is the last event; nothing is left in the reactor."""
        session, slave, _ = self.session()

        async def read() -> list[str]:
            return [type(event.content).__name__ async for event in session]

        reading = self.begin(read())
        closed = self.master.close()
        self.assertTrue(slave.transport.disconnecting)
        slave.lose()
        self.successResultOf(closed)
        self.assertEqual(self.successResultOf(reading), ["Attached", "Detached"])
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_closing_while_it_connects_gives_up(self) -> None:
        """A connection that comes too late is not used."""
        waiting = self.master.attach("echo")
        closed = self.master.close()
        self.failureResultOf(waiting, SessionRefused)
        self.successResultOf(closed)
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_who_gives_up_on_an_attach_is_attached_to_nothing(self) -> None:
        """Cancelling takes back what was asked for."""
        waiting = self.master.attach("echo")
        waiting.cancel()
        self.failureResultOf(waiting)
        slave = Slave(self.reactor)
        slave.welcome()
        self.assertEqual([frame.kind for frame in slave.frames], ["hello"])

    def test_an_effect_is_recorded_before_its_answer_is_sent(self) -> None:
        """B43: attempting before the effect, confirmed before the answer."""
        session, slave, wire = self.session()
        command = Invoke("send", Raw(b"{}"))
        slave.say(data.Command(command, "e1"), wire, "r", "u", "c1")
        self.next(session)
        asked = self.next(session)
        self.successResultOf(self.begin(session.begin(asked)))
        found = self.effects.find("e1")
        assert found is not None
        self.assertEqual(found.state, "attempting")
        answered = self.begin(session.give(asked, {"id": 7}))
        found = self.effects.find("e1")
        assert found is not None
        self.assertEqual(found.state, "confirmed")
        content = data.read(slave.frames[-1])
        assert isinstance(content, data.CommandResult)
        self.assertEqual(content.effect_id, "e1")
        resolved = data.CommandResolved("c1", "e1", "value")
        slave.say(resolved, wire, "r", "u", seq=1)
        self.assertEqual(self.successResultOf(answered), resolved)


class OnceTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()
        self.request = v1.Input("r1", "default", "private", "hi", Origin("test"))

    def ask(self) -> Deferred[Stream]:
        """Send the request."""
        return Deferred.fromCoroutine(
            ask_once(
                self.reactor,
                PATH,
                self.request,
                slave_uids=[ME],
                uid_of=lambda transport: int(transport.uid),
            )
        )

    def read(self, stream: Stream) -> Deferred[list[object]]:
        """All events."""

        async def read() -> list[object]:
            return [reply.event async for reply in stream]

        return Deferred.fromCoroutine(read())

    def test_a_request_and_its_answer(self) -> None:
        """v1: one connection, one request, and its events until done."""
        waiting = self.ask()
        slave = Slave(self.reactor)
        self.assertEqual(v1.decode_request(slave.transport.value()), self.request)
        reading = self.read(self.successResultOf(waiting))
        done = RunDone("r1", "u", "completed")
        slave.protocol.dataReceived(v1.encode_event(done))
        self.assertEqual(self.successResultOf(reading), [done])
        self.assertTrue(slave.transport.disconnecting)
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_nothing_is_said_to_a_slave_of_somebody_else(self) -> None:
        """I15: v1 clients check the slave's UID as well."""
        waiting = self.ask()
        slave = Slave(self.reactor, uid=1001)
        self.assertEqual(slave.transport.value(), b"")
        self.failureResultOf(waiting, SlaveUnavailable)

    def test_a_broken_stream_raises(self) -> None:
        """v1: a client says that it is broken."""
        waiting = self.ask()
        slave = Slave(self.reactor)
        reading = self.read(self.successResultOf(waiting))
        slave.lose()
        self.failureResultOf(reading, SlaveUnavailable)

    def test_silence_raises(self) -> None:
        """A client gives up after 30 s of silence."""
        waiting = self.ask()
        Slave(self.reactor)
        reading = self.read(self.successResultOf(waiting))
        self.reactor.advance(30)
        failure = self.failureResultOf(reading, SlaveUnavailable)
        self.assertIn("silent", str(failure.value))
