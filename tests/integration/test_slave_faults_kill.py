"""A slave that is killed, at any moment and at each step: nothing is lost, nothing runs twice."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred

from cortextx.interaction.data import Done
from cortextx.interaction.master.session import Run
from tests.integration.children import after, alive
from tests.integration.harness import environment
from tests.integration.slave_faults import (
    FaultyHouse,
    descriptors,
    facts_of,
    is_contiguous,
    one_end_each,
    whole_session,
)
from tests.integration.slave_harness import (
    SLAVE,
    Line,
    SlaveCase,
    Stream,
    ask,
    frame,
    kind,
)
from tests.integration.test_master import MasterCase

ROUNDS = 8
ENDED = (0, -signal.SIGTERM)


class Loop(MasterCase):
    """kill -9 again and again, with two masters of our own attached."""

    async def test_both_masters_come_back_by_themselves_each_time(self) -> None:
        """B05, B17, B25: one transcript, no hole, one end for each run, and a retry reads it."""
        chance = random.Random(3)
        self.house.write_config('[agents.echo]\nruntime = "echo"\ndelay = 0.02\n')
        self.house.start()
        mine, other = await self.reader(self.master()), await self.reader(self.master())
        ends: dict[str, str] = {}
        runs: dict[str, str] = {}
        for number in range(ROUNDS):
            asked = {
                f"{name}{number}": Deferred.fromCoroutine(
                    reader.session.input("word " * 25, request_id=f"{name}{number}")
                )
                for name, reader in (("mine", mine), ("other", other))
            }
            # Before anything is accepted, in the first run, in the second, or behind both.
            await after((number + chance.random()) / ROUNDS * 1.2)
            self.house.kill()
            self.house.start()
            for request_id, accepted in asked.items():
                run: Run = await accepted
                ends[request_id] = (await run.ended()).status
                runs[request_id] = run.run_id
        for reader in (mine, other):
            await reader.until(lambda r: len(r.of(Done)) == 2 * ROUNDS)
        self.whole(mine, other)
        self.assertEqual(one_end_each(self.house.facts()), ends)
        self.assertEqual(set(ends.values()), {"completed", "interrupted"})
        before = len(self.house.facts())
        for request_id, run_id in runs.items():
            session = (mine if request_id.startswith("mine") else other).session
            again = await session.input("word " * 25, request_id=request_id)
            self.assertEqual(again.run_id, run_id)
            self.assertEqual((await again.ended()).status, ends[request_id])
        self.assertEqual(len(self.house.facts()), before)
        self.assertEqual(mine.session.cursor, before)


class Steps(SlaveCase):
    """Dying at each call that changes a session's files, in a conversation over the socket."""

    def setUp(self) -> None:
        self.house: FaultyHouse = FaultyHouse(self)

    def converse(self, path: str, session: str) -> list[dict[str, object]]:
        """Say two things; answers the frames that came until the slave was gone."""
        found = []
        with contextlib.suppress(OSError, AssertionError), Stream(path) as stream:
            found.append(stream.attach(session=session))
            for request_id, size in sizes(session):
                stream.input(request_id, "x" * size)
                while kind(found[-1]) != "done" or request_id not in str(found[-1]):
                    found.append(stream.value())
        return found

    def test_at_every_step_of_an_append(self) -> None:
        """I12, I13, I10: what a master saw is there, the rest is as if it never was; a torn
        line is `session_io` until it is repaired; an identical retry runs nothing twice."""
        seen: dict[str, list[dict[str, object]]] = {}
        died: dict[str, str] = {}
        for step in range(1, 40):
            path = self.house.start_until(step)
            session = f"s{step}"
            seen[session] = self.converse(path, session)
            if [kind(f) for f in seen[session]].count("done") == 2:
                self.house.kill()
                break
            died[session] = self.house.reap() or "not at its step"
        self.assertGreater(len(died), 8)
        self.assertEqual({"create", "write_at", "sync", "sync_directory"}, set(died.values()))
        path = self.house.start()
        repaired = 0
        for session, frames in seen.items():
            with Stream(path) as stream:
                if (first := stream.attach(session=session, after=0)) and kind(first) == "error":
                    self.assertEqual(first["event"]["data"]["code"], "session_io", session)
                    self.assertEqual(died[session], "write_at")
                    self.house.cortextx("session", "repair", session)
                    repaired += 1
                    self.assertEqual(kind(stream.attach("b", session=session, after=0)), "attached")
            found = whole_session(path, session)
            self.assertTrue(is_contiguous(f["session_seq"] for f in found))
            promised = facts_of(frames)
            self.assertEqual(facts_of(found)[: len(promised)], promised, (session, died))
            before = one_end_each(found)
            with Stream(path) as stream:
                stream.attach(session=session)
                for request_id, size in sizes(session):
                    stream.input(request_id, "x" * size)
                    last = stream.done(request_id)[-1]
                    expected = before.get(request_id, "completed")
                    self.assertEqual(last["event"]["data"]["status"], expected)
            ends = one_end_each(whole_session(path, session))
            self.assertEqual(set(ends), {request_id for request_id, _ in sizes(session)})
        self.assertGreater(repaired, 0)


class Ending(SlaveCase):
    def test_sigterm_at_any_moment_is_clean(self) -> None:
        """Exit code, last words, nothing left behind, and a log that needs no recovery."""
        self.house.write_config('[agents.echo]\nruntime = "echo"\ndelay = 0.02\n')
        count = 0
        for moment in (0.0, 0.05, 0.3):
            path = self.house.start()
            streams = [Stream(path), Stream(path)]
            for number, stream in enumerate(streams):
                stream.attach(after=count)
                stream.input(f"r{moment}-{number}", "word " * 20)
            time.sleep(moment)
            begun = time.monotonic()
            self.assertIn(self.house.stop(SLAVE), ENDED)
            self.assertLess(time.monotonic() - begun, 5)
            facts = self.house.facts()
            one_end_each(facts)
            for stream in streams:
                heard = [f for f in stream.rest() if f["event"].get("durable")]
                self.assertEqual([f["session_seq"] for f in heard],
                                 [f["session_seq"] for f in facts[count:]])  # fmt: skip
            count = len(facts)
            self.assertEqual(sorted(os.listdir(self.house.state / "run")), ["cortex-slave.lock"])
        said = self.house.output(SLAVE)
        for bad in ("Traceback", "Unhandled", "critical"):
            self.assertNotIn(bad, said)
        path = self.house.start()
        self.assertEqual(len(whole_session(path)), count)

    def test_sigterm_while_it_starts(self) -> None:
        """It ends at once, whatever it was about to do."""
        for moment in (0.1, 0.3, 0.5):
            child = subprocess.Popen(
                [sys.executable, "-c", "from twisted.scripts.twistd import run; run()",
                 "--pidfile=", "-n", SLAVE, "--state-dir", str(self.house.state)],
                env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            self.addCleanup(child.wait)
            self.addCleanup(child.kill)
            time.sleep(moment)
            child.terminate()
            child.wait(10)
        self.assertEqual(ask(self.house.start(), {"op": "ping"}), [{"type": "pong"}])


class Locks(SlaveCase):
    """One owner of a session's log, whatever path leads to it (I14, B28)."""

    def test_two_slaves_on_one_root_by_different_names(self) -> None:
        """The second gets `session_locked` at once, told who; it takes over after a kill -9."""
        path = self.house.start()
        mine = Stream(path)
        mine.attach()
        mine.input("r1", "hi")
        mine.done("r1")
        second = FaultyHouse(self)
        (second.state / "sessions").symlink_to(self.house.state / "sessions")
        other = second.start()
        with Stream(other) as stream:
            begun = time.monotonic()
            refused = stream.attach(after=0)
            self.assertLess(time.monotonic() - begun, 1)
            self.assertEqual(kind(refused), "error")
            data = refused["event"]["data"]
            self.assertEqual((data["code"], data["retryable"]), ("session_locked", True))
            self.assertIn(f"process {self.house.running[SLAVE].pid}", data["message"])
            self.assertEqual(kind(stream.attach("b", "another")), "attached")
            mine.input("r2", "still mine")
            mine.done("r2")
            count = len(self.house.facts())
            self.house.kill()
            self.assertEqual(kind(stream.attach("c", after=0)), "attached")
            stream.input("r3", "mine now", "c")
            stream.done("r3")
        seqs = [fact["session_seq"] for fact in self.house.facts()]
        self.assertEqual(seqs, list(range(1, count + 6)))

    def test_a_child_that_outlives_the_slave_holds_nothing(self) -> None:
        """One that cannot be found again, in a session of its own and without its receipt:
        it has no lock, log or socket, and the session opens while it lives."""
        pids: Path = self.house.root / "pid"
        script = self.house.root / "agent.sh"
        script.write_text(
            "read -r request\n"
            f"env -i /usr/bin/setsid /bin/sh -c 'echo $$ > {pids}; exec sleep 60' &\nwait\n"
        )
        self.house.write_config(
            f'[agents.echo]\nruntime = "exec"\ncommand = ["/bin/sh", "{script}"]\n'
        )
        path = self.house.start()
        with Line(path) as line:
            line.send({"op": "send", "input": "x"})
            self.house.wait_until(lambda: pids.exists() and pids.read_text().strip(), "the child")
            left = int(pids.read_text())
            self.addCleanup(kill, left)
            state = str(self.house.state)
            self.assertEqual([each for each in descriptors(left) if state in each], [])
            self.house.kill()
        self.assertTrue(alive(left))
        path = self.house.start()
        last = ask(path, {"op": "resume"})[-1]
        self.assertEqual((last["type"], last["status"]), ("done", "interrupted"))
        self.assertTrue(alive(left))


class Trimmed(SlaveCase):
    def test_kills_while_the_log_is_trimmed(self) -> None:
        """I38, I9: the log opens each time, its beginning is told as a gap with exact bounds,
        and every request has one end, at the same seq, long after its facts are gone."""
        chance = random.Random(7)
        self.house.write_config("[slave]\nsession_mib = 1\nidle_seconds = 0.2\n")
        ends: dict[str, tuple[str, int]] = {}
        count, first = 0, 1
        for _ in range(5):
            path = self.house.start()
            with Stream(path) as stream:
                head = stream.attach(after=0, mode="observe")["event"]["data"]["head"]
                found = [stream.value()] if head else []
                while found and found[-1]["session_seq"] != head:
                    found.append(stream.value())
            if found and kind(found[0]) == "gap":
                told = found.pop(0)["event"]["data"]
                self.assertEqual((told["from_seq"], told["to_seq"] + 1),
                                 (1, found[0]["session_seq"]))  # fmt: skip
                first = found[0]["session_seq"]
            self.assertTrue(is_contiguous(f["session_seq"] for f in found))
            with Stream(path) as stream:
                stream.attach()
                for number in range(count):
                    done = self.one(stream, f"r{number}")
                    self.assertEqual(ends.setdefault(f"r{number}", done), done)
            killer = threading.Timer(0.1 + chance.random() * 0.6, self.house.kill)
            killer.start()
            with contextlib.suppress(OSError, AssertionError), Stream(path) as stream:
                stream.attach()
                while True:
                    count += 1
                    ends[f"r{count - 1}"] = self.one(stream, f"r{count - 1}")
            killer.join()
        self.assertGreater(first, 100)

    def one(self, stream: Stream, request_id: str) -> tuple[str, int]:
        """How a request ends, and where."""
        stream.input(request_id, "x" * 40_000)
        last = stream.done(request_id)[-1]
        stream.send(frame("ack", ["c", "a"], {}, last["session_seq"]))
        return last["event"]["data"]["status"], last["session_seq"]


class Children(SlaveCase):
    def test_kills_while_a_child_talks_as_fast_as_it_can(self) -> None:
        """B25: its processes are gone before the session is open again, and nothing of the run
        follows its one end."""
        chance = random.Random(11)
        script, pids = self.house.root / "agent.sh", self.house.root / "pids"
        script.write_text(
            f"read -r request\necho $$ >> {pids}\nsh -c 'echo $$ >> {pids}; sleep 60' &\n"
            'while :; do printf \'{"type":"message","content":"%s"}\\n\' $$; done\n'
        )
        self.house.write_config(
            f'[agents.echo]\nruntime = "exec"\ncommand = ["/bin/sh", "{script}"]\n'
        )
        for number in range(4):
            path = self.house.start()
            with Stream(path) as stream:
                stream.attach()
                self.assertEqual(self.left(pids), [])
                stream.input(f"r{number}", "go")
                stream.until(lambda f: f["event"]["data"].get("role") == "assistant")
                time.sleep(chance.random() * 0.3)
                self.house.kill()
        with Stream(self.house.start()) as stream:
            stream.attach()
            self.assertEqual(self.left(pids), [])
        facts = self.house.facts()
        self.assertTrue(is_contiguous(f["session_seq"] for f in facts))
        self.assertEqual(one_end_each(facts), {f"r{n}": "interrupted" for n in range(4)})
        ended: set[str] = set()
        for fact in facts:
            self.assertNotIn(fact["correlation"]["run_id"], ended)
            if kind(fact) == "done":
                ended.add(fact["correlation"]["run_id"])

    def left(self, pids: Path) -> list[int]:
        """What still runs of the agents' processes."""
        known = map(int, pids.read_text().split()) if pids.exists() else ()
        return [pid for pid in known if alive(pid)]

    def test_an_approval_dies_with_its_slave_B10(self) -> None:
        """A yes after the restart is `unknown_command`, and a frozen slave loses nothing."""
        self.house.write_config('[agents.echo]\nruntime = "echo"\napprove = true\n')
        path = self.house.start()
        stream = Stream(path)
        stream.attach()
        commands = []
        for request_id in ("r1", "r2"):
            stream.input(request_id, "please")
            commands.append(stream.until(lambda f: kind(f) == "command")[-1])
            if request_id == "r1":
                pid = self.house.running[SLAVE].pid
                os.kill(pid, signal.SIGSTOP)
                self.addCleanup(kill, pid)
                stream.send(self.yes(commands[0]))
                time.sleep(0.3)
                os.kill(pid, signal.SIGCONT)
                status = stream.done("r1")[-1]["event"]["data"]["status"]
                self.assertEqual(status, "completed")
        self.house.kill()
        with Stream(self.house.start()) as stream:
            stream.attach(after=0)
            stream.send(self.yes(commands[1]))
            last = stream.until(lambda f: kind(f) == "error")[-1]["event"]["data"]
            self.assertEqual(last["code"], "unknown_command")
        ends = one_end_each(self.house.facts())
        self.assertEqual(ends, {"r1": "completed", "r2": "interrupted"})

    def yes(self, command: dict[str, Any]) -> dict[str, Any]:
        """The approval of a command."""
        data = {
            "result": {"type": "accepted"},
            "effect_id": command["event"]["data"]["effect_id"],
        }
        return frame("command_result", list(command["correlation"].values()), data)


def sizes(session: str) -> list[tuple[str, int]]:
    """The requests of a session, one that is noted before it is written and one that is not."""
    return [(f"{session}-big", 6000), (f"{session}-small", 5)]


def kill(pid: int) -> None:
    """kill -9, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
