"""The master library against a real slave that is cut off, killed, and somebody else's."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred, gatherResults
from twisted.trial.unittest import SkipTest, TestCase

from cortextx.core.backoff import FullJitter
from cortextx.core.exchange import Origin
from cortextx.errors import SessionRefused, SlaveUnavailable
from cortextx.interaction import v1
from cortextx.interaction.master.client import Master, Session
from cortextx.interaction.master.effect_file import FileEffects
from cortextx.interaction.master.events import (
    INTERACT,
    Accepted,
    Attached,
    Command,
    CommandResolved,
    Delta,
    Disconnected,
    Done,
    Event,
    Message,
)
from cortextx.interaction.master.once_client import ask_once
from tests.integration.children import after
from tests.integration.harness import environment
from tests.integration.slave_harness import SlaveHouse

DOC = Path(__file__).parents[2] / "docs" / "masters.md"
NOBODY = 65534
SLOW = '[agents.echo]\nruntime = "echo"\ndelay = 0.05\n'


class Reader:
    """Reads a session to its end, and keeps what it saw."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.events: list[Event] = []
        self.done = Deferred.fromCoroutine(self._read())

    async def _read(self) -> None:
        async for event in self.session:
            self.events.append(event)

    @property
    def facts(self) -> list[tuple[int, str]]:
        """The seqs and contents of the facts."""
        return [(e.seq, repr(e.content)) for e in self.events if e.seq is not None]

    def of(self, kind: type) -> list[Event]:
        """The events with this content."""
        return [event for event in self.events if isinstance(event.content, kind)]

    async def until(self, seen: Any, seconds: float = 15.0) -> None:
        """Wait until `seen(self)` holds."""
        end = time.monotonic() + seconds
        while not seen(self):
            if time.monotonic() > end:
                raise AssertionError(f"it did not come: {self.events[-5:]}")
            await after(0.02)


class MasterCase(TestCase):
    timeout = 90

    def setUp(self) -> None:
        self.house = SlaveHouse(self)  # type: ignore[arg-type]  # all it wants is addCleanup

    def master(self, **more: Any) -> Master:
        """A master of this house's slave, closed with the test."""
        import random

        found = Master(
            reactor,
            self.house.socket,
            backoff=FullJitter(random=random.random, base=0.1, cap=0.5),
            **more,
        )
        self.addCleanup(found.close)
        return found

    async def reader(self, master: Master, **more: Any) -> Reader:
        """A reader of the default session from its first fact on."""
        return Reader(await master.attach("echo", after=0, **more))

    def whole(self, *readers: Reader) -> None:
        """All saw the same facts, which are those of the log."""
        expected = list(range(1, len(self.house.facts()) + 1))
        for reader in readers:
            self.assertEqual([seq for seq, _ in reader.facts], expected)
            self.assertEqual(reader.facts, readers[0].facts)


class SharingTests(MasterCase):
    async def test_two_masters_see_the_same_and_one_is_asked(self) -> None:
        """Audience, B14: durable events for both, deltas and the approval for the origin."""
        self.house.write_config('[agents.echo]\nruntime = "echo"\napprove = true\n')
        self.house.start()
        mine, other = await self.reader(self.master()), await self.reader(self.master())
        run = await mine.session.input("hello")
        await mine.until(lambda r: r.of(Command))
        [asked] = mine.of(Command)
        await after(0.1)
        self.assertEqual(other.of(Command), [])
        with self.assertRaises(SessionRefused):
            await other.session.approve(asked)
        resolved = await mine.session.approve(asked)
        self.assertIsInstance(resolved, CommandResolved)
        self.assertEqual(await run.ended(), Done("completed"))
        for reader in (mine, other):
            await reader.until(lambda r: r.of(Done))
        self.assertTrue(mine.of(Delta))
        self.assertEqual(other.of(Delta), [])
        self.assertEqual([e.is_own for e in other.of(Done)], [False])
        self.whole(mine, other)

    async def test_an_observer_may_not_speak(self) -> None:
        """I4: observing is no way to control."""
        self.house.start()
        reader = await self.reader(self.master(), mode="observe")
        with self.assertRaises(SessionRefused) as caught:
            await reader.session.input("hello")
        self.assertEqual(caught.exception.code, "forbidden")

    async def test_a_cancel_ends_a_run_within_a_second(self) -> None:
        """I8: done cancelled, for who cancelled and for whose run it was."""
        self.house.write_config(SLOW)
        self.house.start()
        mine, other = await self.reader(self.master()), await self.reader(self.master())
        run = await mine.session.input("word " * 200)
        await mine.until(lambda r: r.of(Delta))
        begun = time.monotonic()
        self.assertEqual(await other.session.cancel(run.run_id), Done("cancelled"))
        self.assertLess(time.monotonic() - begun, 1.0)
        self.assertEqual(await run.ended(), Done("cancelled"))
        self.assertEqual((await mine.session.status()).status, "idle")


class BreakingTests(MasterCase):
    async def test_a_killed_slave_comes_back_to_everybody(self) -> None:
        """B05, B25: nothing missing, and the run ended as interrupted."""
        self.house.write_config(SLOW)
        self.house.start()
        mine, other = await self.reader(self.master()), await self.reader(self.master())
        first = await mine.session.input("before")
        await first.ended()
        run = await mine.session.input("word " * 400)
        await mine.until(lambda r: r.of(Delta))
        ended = run.ended()
        self.house.kill()
        await mine.until(lambda r: r.of(Disconnected))
        waiting = Deferred.fromCoroutine(mine.session.input("after"))
        self.house.start()
        self.assertEqual((await ended).status, "interrupted")
        last = await waiting
        self.assertEqual(await last.ended(), Done("completed"))
        for reader in (mine, other):
            await reader.until(lambda r: len(r.of(Done)) == 3)
            self.assertEqual(len(reader.of(Attached)), 2)
        self.whole(mine, other)

    async def test_cuts_at_any_time_lose_nothing(self) -> None:
        """B05, B17: a conversation over connections that live for a moment each."""
        self.house.write_config('[agents.echo]\nruntime = "echo"\ndelay = 0.01\n')
        self.house.start()
        master = self.master()
        reader = await self.reader(master)
        runs = []
        for number in range(12):
            waiting = Deferred.fromCoroutine(reader.session.input(f"words of {number} " * 5))
            for _ in range(2):
                await after(0.03)
                link = master._adapter._link
                if link is not None:
                    link.transport.abortConnection()
            runs.append((await waiting).ended())
        ends = await gatherResults(runs)
        self.assertEqual([done.status for done in ends], ["completed"] * 12)
        await reader.until(lambda r: len(r.of(Done)) == 12)
        self.assertEqual(len(reader.of(Accepted)), 12)
        self.assertGreater(len(reader.of(Disconnected)), 5)
        self.whole(reader)

    async def test_the_next_life_goes_on_behind_its_cursor(self) -> None:
        """v2: cursor and request_id are all that a restarted master needs to keep."""
        self.house.start()
        first = self.master()
        reader = await self.reader(first)
        run = await reader.session.input("hello", request_id="stable")
        await run.ended()
        await reader.until(lambda r: r.of(Done))
        cursor = reader.session.cursor
        await first.close()
        session = await self.master().attach("echo", after=cursor)
        again = await session.input("hello", request_id="stable")
        self.assertEqual(again.run_id, run.run_id)
        self.assertEqual(await again.ended(), Done("completed"))
        with self.assertRaises(SessionRefused) as caught:
            await session.input("other words", request_id="stable")
        self.assertEqual(caught.exception.code, "request_conflict")

    async def test_a_reader_that_stands_still_gets_all_of_it_later(self) -> None:
        """B31, I34: the slave lets go of it, and it comes back when it has read what it had."""
        self.house.write_config("[slave]\nslow_seconds = 0.5\n")
        self.house.start()
        still = await self.master().attach("echo", after=0)
        writer = await self.reader(self.master())
        for number in range(14):
            runs = [await writer.session.input(f"{number} {n}") for n in range(20)]
            await gatherResults([run.ended() for run in runs])
        self.assertGreater(len(self.house.facts()), 1300)
        await after(1.5)
        reader = Reader(still)
        await reader.until(lambda r: len(r.facts) == len(self.house.facts()), 30)
        self.assertEqual(len(reader.of(Attached)), 2)
        await writer.until(lambda r: len(r.facts) == len(self.house.facts()))
        self.whole(reader, writer)


class TrustTests(MasterCase):
    async def test_a_slave_of_another_user_hears_nothing(self) -> None:
        """I15: the UID is checked before a byte is sent, v2 and v1."""
        if os.geteuid() != 0:
            raise SkipTest("only root can run a process as somebody else")
        self.house.root.chmod(0o777)
        path = str(self.house.root / "other.sock")
        program = (
            "import os,socket,sys\n"
            f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})\n"
            "s=socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); s.settimeout(30)\n"
            "print('up', flush=True)\n"
            "for _ in range(2):\n"
            " found=s.accept()[0]; found.settimeout(10); print(repr(found.recv(100)), flush=True)\n"
        )
        other = subprocess.Popen(  # noqa: ASYNC220 - it only begins here
            [sys.executable, "-c", program, path], stdout=subprocess.PIPE, text=True
        )
        self.addCleanup(other.wait)
        self.addCleanup(other.kill)
        assert other.stdout is not None
        self.addCleanup(other.stdout.close)
        self.assertEqual(other.stdout.readline(), "up\n")
        master = Master(reactor, path)
        with self.assertRaises(SlaveUnavailable) as caught:
            await master.connect()
        self.assertIn(str(NOBODY), str(caught.exception))
        await master.close()
        words = v1.Input("r", "default", "private", "secret", Origin("test"))
        with self.assertRaises(SlaveUnavailable):
            await ask_once(reactor, path, words)
        await after(0.1)  # an aborted connection is closed by the reactor
        self.assertEqual(other.stdout.read(), "b''\nb''\n")

    async def test_without_a_slave_it_says_where_it_looked(self) -> None:
        """The path is in the message, and why it is none."""
        master = Master(reactor, "/tmp/no-such-slave.sock")
        self.addCleanup(master.close)
        with self.assertRaises(SlaveUnavailable) as caught:
            await master.connect()
        self.assertEqual(
            str(caught.exception), "/tmp/no-such-slave.sock: No such file or directory"
        )


class OnceTests(MasterCase):
    async def story(self, request: Any, **more: Any) -> list[str]:
        """The types of the events that answer."""
        stream = await ask_once(reactor, self.house.socket, request, **more)
        return [type(reply.event).__name__ async for reply in stream]

    async def test_v1_in_every_form(self) -> None:
        """I6: framed and flat requests, with slaves that answer framed, flat and both."""
        for form in ("both", "framed", "flat"):
            self.house.write_config(f'[slave]\nv1_form = "{form}"\n')
            self.house.start()
            for asked in ("framed", "flat"):
                words = v1.Input(f"{form}-{asked}", "default", "private", "hi", Origin("test"))
                names = await self.story(words, form=asked)
                self.assertEqual(names[-2:], ["Message", "RunDone"], (form, asked))
                again = await self.story(words, form=asked)
                self.assertEqual(again[-1], "RunDone")
            self.house.stop("cortex-slave", signal.SIGTERM)
        accepted = [f for f in self.house.facts() if f["event"]["kind"] == "accepted"]
        self.assertEqual(len(accepted), 6)


class PrintedTests(MasterCase):
    def program(self, number: int) -> str:
        """A program in the docs."""
        return re.findall(r"```python\n(.*?)```", DOC.read_text(), re.DOTALL)[number]

    def test_the_ten_lines_work_as_printed(self) -> None:
        """docs/masters.md: from another project, with nothing but the package."""
        self.house.start()
        file = self.house.root / "ask.py"
        file.write_text(self.program(0))
        ran = subprocess.run(
            [sys.executable, str(file), self.house.socket, "hello"],
            capture_output=True, text=True, timeout=30, cwd=self.house.root,
            env=environment(), check=False,
        )  # fmt: skip
        self.assertEqual((ran.stdout, ran.returncode), ("hello\ncompleted\n", 0), ran.stderr)

    async def test_commands_are_answered_as_printed(self) -> None:
        """docs/masters.md: approve and reject."""
        from cortextx.interaction.master import events

        self.house.write_config('[agents.echo]\nruntime = "echo"\napprove = true\n')
        self.house.start()
        body = "".join(f"    {line}\n" for line in self.program(1).splitlines())
        scope: dict[str, Any] = {name: getattr(events, name) for name in events.__all__}
        for harmless in ([], ["echo"]):
            scope["harmless"] = harmless
            exec(f"async def answered(session, event):\n{body}", scope)
            session = await self.master().attach("echo")
            run = await session.input("hello")
            async for event in session:
                if isinstance(event.content, Command):
                    await scope["answered"](session, event)
                if isinstance(event.content, Done):
                    break
            self.assertEqual((await run.ended()).status, "completed")

    async def test_one_request_works_as_printed(self) -> None:
        """docs/masters.md: version 1."""
        self.house.start()
        said: list[tuple[Any, ...]] = []
        scope: dict[str, Any] = {"print": lambda *words: said.append(words)}
        exec(self.program(3), scope)
        await scope["once"](reactor, self.house.socket)
        self.assertEqual([name for name, _ in said][-1], "RunDone")

    async def test_an_effect_is_carried_out_once_as_printed(self) -> None:
        """docs/masters.md, B43: two runs want the same mail sent; it is sent once."""
        child = self.house.root / "mailer.py"
        child.write_text(MAILER)
        child.chmod(0o755)
        command = f'["{sys.executable}", "{child}"]'
        self.house.write_config(f'[agents.mailer]\nruntime = "exec"\ncommand = {command}\n')
        self.house.start()
        effects = FileEffects(str(self.house.root / "effects"))
        self.addCleanup(effects.close)
        mails: list[Any] = []

        async def send_the_mail(command: Any) -> dict[str, int]:
            mails.append(command)
            return {"id": 7}

        body = "".join(f"    {line}\n" for line in self.program(2).splitlines())
        scope: dict[str, Any] = {"send_the_mail": send_the_mail}
        exec(f"async def sent(session, event):\n{body}", scope)
        session = await self.master(effects=effects).attach(
            "mailer", capabilities=(*INTERACT, "invoke")
        )
        reader = Reader(session)
        for times in (1, 2):
            waiting = Deferred.fromCoroutine(session.input("go"))
            if times == 1:
                await reader.until(lambda r: r.of(Command))
                await scope["sent"](session, reader.of(Command)[0])
            self.assertEqual(await (await waiting).ended(), Done("completed"))
            await reader.until(lambda r, times=times: len(r.of(Done)) == times)
        self.assertEqual(len(mails), 1)
        said = [e.content.text for e in reader.of(Message) if e.content.role == "assistant"]  # type: ignore[union-attr]
        self.assertEqual(said, ["sent as 7", "sent as 7"])


MAILER = """
from cortextx.runtimes import child

@child.main
def answer(run):
    sent = run.invoke("send", {"to": "bob"}, "mail-1")
    run.message(f"sent as {sent['id']}")
"""
