"""Peers that do a slave harm: they stop reading, flood it, come and go, or are somebody else."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.integration.peers import need
from tests.integration.slave_faults import (
    NOBODY,
    FaultyHouse,
    Talker,
    as_nobody,
    descriptors,
    facts_of,
    is_contiguous,
    memory,
    whole_session,
)
from tests.integration.slave_harness import SLAVE, Line, Stream, an_input, ask, frame, kind, value

MIB = 1024 * 1024
PATIENCE = 1.5
"""The longest that somebody else may wait meanwhile; far more than a loaded machine needs."""


class PeerCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.house = FaultyHouse(self)  # type: ignore[arg-type]  # all it wants is addCleanup

    def unharmed(self, talker: Talker) -> None:
        """Somebody else had all that was asked for, in time."""
        self.assertIsNone(talker.fault)
        self.assertGreater(talker.count, 2)
        self.assertLess(talker.slowest, PATIENCE)


class SlowTests(PeerCase):
    def test_a_master_that_stops_reading_B31_B32(self) -> None:
        """I16, I34: it costs bounded memory, is let go, and has every fact later; the session's
        other master and other sessions go on as if nothing were."""
        self.house.write_config("[slave]\nslow_seconds = 1.0\n")
        path = self.house.start()
        stuck = [Stream(path) for _ in range(8)]
        writer = Stream(path)
        writer.attach()
        for stream in stuck:
            self.assertEqual(kind(stream.attach(after=0)), "attached")
        before = memory(self.house.pid)
        slowest, head = 0.0, 0
        with Talker(path) as talker:
            for number in range(150):
                begun = time.monotonic()
                writer.input(f"r{number}", "x" * 100_000)
                head = writer.done(f"r{number}")[-1]["session_seq"]
                writer.send(frame("ack", ["c", "a"], {}, head))
                slowest = max(slowest, time.monotonic() - begun)
            used = memory(self.house.pid) - before
            # 8 × 1 MiB at the most, what was recent, and the log's tail in memory.
            self.assertLess(used, 48 * MIB)
            self.assertLess(slowest, PATIENCE)
            time.sleep(2.5)  # two pauses of slow_seconds, so that all are let go
        self.unharmed(talker)
        connected = [each for each in descriptors(self.house.pid) if each.startswith("socket")]
        self.assertLess(len(connected), 8)
        for stream in stuck[:2]:
            got: list[dict[str, Any]] = []
            with contextlib.suppress(AssertionError, ConnectionResetError):
                got.extend(iter(stream.value, None))  # to the end of what was on its way
            seqs = [seq for seq, _, _ in facts_of(got)]
            self.assertEqual(seqs, list(range(1, len(seqs) + 1)))
            rest = whole_session(path, after=seqs[-1] if seqs else 0)
            self.assertEqual(facts_of(got + rest), facts_of(self.house.facts()))
            self.assertEqual(len(seqs) + len(rest), head)

    def test_a_window_that_is_never_acknowledged(self) -> None:
        """It reads, but acknowledges nothing: `slow_consumer`, on this attachment only."""
        self.house.write_config("[slave]\nslow_seconds = 1.0\n[limits]\nmax_unacked_events = 20\n")
        path = self.house.start()
        for number in range(10):
            ask(path, an_input(f"r{number}", "hi"))
        with Stream(path) as stream:
            stream.attach("a", after=0)
            got = stream.until(lambda f: kind(f) == "error")
            self.assertEqual(got[-1]["event"]["data"]["code"], "slow_consumer")
            self.assertEqual([seq for seq, _, _ in facts_of(got)], list(range(1, 21)))
            stream.attach("b", after=20)
            self.assertEqual(stream.value()["session_seq"], 21)


class ChurnTests(PeerCase):
    CYCLES = 10_000

    def test_ten_thousand_attachments_come_and_go(self) -> None:
        """B40: memory and descriptors are what they were, in the middle of a run as well."""
        self.house.write_config(
            '[slave]\nidle_seconds = 0.2\n[agents.echo]\nruntime = "echo"\ndelay = 1.0\n'
        )
        path = self.house.start()
        ask(path, an_input("before", "hi"))
        with Line(path) as running:
            running.send(an_input("long", "word " * 100))
            running.until(lambda each: value(each)["type"] == "started")
            self.churn(path, 1500)
            at_first = memory(self.house.pid), len(descriptors(self.house.pid))
            self.churn(path, self.CYCLES - 1500)
            self.house.wait_until(
                lambda: len(descriptors(self.house.pid)) <= at_first[1] + 1, "what is idle to close"
            )
            grown = memory(self.house.pid) - at_first[0]
            self.assertLess(grown, 6 * MIB)
            (run,) = {
                f["correlation"]["run_id"]
                for f in self.house.facts()
                if f["correlation"].get("request_id") == "long" and kind(f) == "started"
            }
            with Stream(path) as stream:
                stream.attach()
                stream.send(frame("cancel", ["c", "a", "stop", run], {}))
                self.assertEqual(stream.done("long")[-1]["event"]["data"]["status"], "cancelled")
        ask(path, an_input("after", "hi"))

    def churn(self, path: str, cycles: int) -> None:
        """Attach and detach, over some connections and sessions, then hang up while attached.

        An attachment that is left before its session is open is never told of it.
        """
        made = attached = 0
        while made < cycles:
            with Stream(path) as stream:
                for _ in range(10):
                    names = [f"a{made + n}" for n in range(50)]
                    fence = f"fence{made}"
                    lines = [line for name in names for line in self.cycle(name)]
                    stream.send(b"".join(lines) + self.cycle(fence)[0])
                    got = stream.until(
                        lambda f, last=fence: (
                            kind(f) == "attached" and f["correlation"]["attachment_id"] == last
                        )
                    )
                    self.assertNotIn("error", [kind(f) for f in got])
                    attached += [kind(f) for f in got].count("attached")
                    made += len(names)
        self.assertGreater(attached, cycles // 2)

    def cycle(self, name: str) -> tuple[bytes, bytes]:
        """An attach and its detach; a third of them in other sessions."""
        number = int(name[1:]) if name[1:].isdigit() else 1
        session = f"other{number % 5}" if number % 3 == 0 else "default"
        data = {"agent": "echo", "scope": "private", "after_session_seq": 0}
        attach = frame(
            "attach", ["c", name], data, mode="observe", session=session,
            capabilities=["observe", "replay"],
        )  # fmt: skip
        detach = frame("detach", ["c", name], {})
        return json.dumps(attach).encode() + b"\n", json.dumps(detach).encode() + b"\n"


class FilesTests(PeerCase):
    def test_too_few_files(self) -> None:
        """More sessions than the process may have files: refused for now, not called damaged;
        when others are unloaded, all of them are served."""
        need("prlimit")
        self.house.write_config("[slave]\nidle_seconds = 0.2\n")
        path = self.house._start(SLAVE, prefix=("prlimit", "--nofile=48:48"))
        holders, refused = [], 0
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # by the kernel's limit
            for number in range(40):
                stream = Stream(path)
                holders.append(stream)
                got = stream.attach(session=f"s{number}")
                if kind(got) == "error":
                    refused += 1
                    data = got["event"]["data"]
                    self.assertEqual((data["code"], data["retryable"]), ("session_io", True))
        self.assertGreater(refused, 0)
        self.assertGreater(len(holders), 5)
        for stream in holders:
            stream.close()
        for number in range(40):
            self.house.wait_until(
                lambda session=f"s{number}": self.is_served(path, session), "its turn", 10
            )

    def is_served(self, path: str, session: str) -> bool:
        """Whether one may attach."""
        with contextlib.suppress(ConnectionResetError, BrokenPipeError), Stream(path) as stream:
            return kind(stream.attach(session=session)) == "attached"
        return False


class FloodTests(PeerCase):
    def flood(self, path: str, begin: bytes, size: int = 64 * MIB) -> int:
        """Send so much without a newline; answers how much was taken."""
        sent = 0
        piece = b"x" * 65_536
        with Line(path) as line, contextlib.suppress(OSError):
            line.send(begin)
            while sent < size:
                line.socket.sendall(piece)
                sent += len(piece)
        return sent

    def test_a_flood_without_a_newline_B34(self) -> None:
        """I22: cut at the limit, before a hello and behind it, for v1 and for what is neither;
        memory stays, and others do not notice."""
        path = self.house.start()
        hello = frame("hello", ["c"], {"versions": ["cortexfs.interaction/v2"]},
                      capabilities=["input", "observe"])  # fmt: skip
        before = memory(self.house.pid)
        with Talker(path) as talker:
            for begin in (b"", b'{"abi":"cortexfs.interaction/v2",', b'{"op":"send","input":"',
                          json.dumps(hello).encode() + b"\n"):  # fmt: skip
                for _ in range(5):
                    # The limit, and what fits into the sockets between.
                    self.assertLess(self.flood(path, begin), 8 * MIB, begin)
            end = time.monotonic() + 5
            while talker.count < 3 and time.monotonic() < end:
                time.sleep(0.01)
        self.unharmed(talker)
        self.assertLess(memory(self.house.pid) - before, 16 * MIB)

    def test_a_storm_of_small_frames(self) -> None:
        """A peer that sends as fast as it can and reads nothing: held back or let go."""
        self.house.write_config("[slave]\nslow_seconds = 1.0\n")
        path = self.house.start()
        before = memory(self.house.pid)
        with Talker(path) as talker, Stream(path) as stream:
            stream.attach()
            status = json.dumps(frame("status", ["c", "a", "s"], {})).encode() + b"\n"
            stream.socket.settimeout(0.5)
            sent, end = 0, time.monotonic() + 4
            with contextlib.suppress(OSError):
                while time.monotonic() < end:
                    stream.socket.sendall(status * 200)
                    sent += 200
            self.assertLess(memory(self.house.pid) - before, 32 * MIB)
        self.assertGreater(sent, 1000)
        self.unharmed(talker)


class StrangerTests(PeerCase):
    """Peers of another UID (I15): what the kernel says of them is all that counts."""

    def setUp(self) -> None:
        if os.geteuid() != 0:
            raise SkipTest("only root can become somebody else")
        super().setUp()
        self.path = str(self.house.root / "open.sock")
        self.policy = self.house.state / "policy.toml"

    def start(self, rules: str) -> None:
        """A slave whose socket is everybody's to connect to."""
        self.policy.write_text(rules)
        self.house.write_config(f'[slave]\nsocket_mode = "0666"\npolicy = "{self.policy}"\n')
        self.house.start("--socket", self.path)

    def test_nothing_is_said_to_a_stranger(self) -> None:
        """Before any reply, whatever they say first, however many they are."""
        self.start("")
        hello = frame("hello", ["c"], {"versions": ["cortexfs.interaction/v2"]},
                      capabilities=["input", "observe"])  # fmt: skip

        def knock() -> list[str]:
            said = []
            for request in (hello, {"op": "ping"}, an_input("r", "hi"), b"garbage\n"):
                for _ in range(20):
                    try:
                        with Line(self.path) as line:
                            line.send(request)
                            said += [kind(each) for each in line.rest()]
                    except (ConnectionResetError, BrokenPipeError):
                        pass
            return said

        with Talker(self.path) as talker:
            said = as_nobody(knock)
            end = time.monotonic() + 5
            while talker.count < 3 and time.monotonic() < end:
                time.sleep(0.01)
        self.assertEqual(said, [])
        self.unharmed(talker)
        self.assertFalse((self.house.state / "sessions" / "home" / str(NOBODY)).exists())

    def test_a_rule_allows_what_it_says_and_no_more(self) -> None:
        """Observing a shared session, by a rule: no input, no other session, no owner's."""
        self.start(
            f'[[allow]]\nuids = [{NOBODY}]\nscope = "shared"\nspaces = ["team"]\nmode = "observe"\n'
            '[[allow]]\nuids = [0]\nscope = "shared"\nspaces = ["team"]\n'
        )
        with Stream(self.path) as mine:
            self.assertEqual(kind(mine.attach(scope="shared", space="team")), "attached")
            mine.input("r1", "for the team")
            mine.done("r1")

        told = as_nobody(self.attempts)
        self.assertEqual(told, ["attached", *["forbidden"] * 4])

    def attempts(self) -> list[str]:
        """What each attach answers; run as a stranger."""
        said = []
        observing: dict[str, Any] = {"mode": "observe", "after": 0}
        for more in (
            {"scope": "shared", "space": "team", **observing},
            {"scope": "shared", "space": "team"},
            {"scope": "shared", "space": "other", **observing},
            observing,
            {"owner": 0, **observing},
        ):
            with Stream(self.path) as stream:
                got = stream.attach(**more)
                is_error = kind(got) == "error"
                said.append(str(got["event"]["data"]["code"]) if is_error else kind(got))
        return said

    def test_a_rule_that_is_taken_away_ends_what_it_allowed(self) -> None:
        """Asked again before the next durable delivery: nothing more comes."""
        rule = '[[allow]]\nscope = "shared"\nspaces = ["team"]\n'
        self.start(f"{rule}uids = [{NOBODY}]\n{rule}uids = [0]\n")
        seen = self.house.root / "seen"
        seen.mkdir(mode=0o777)
        seen.chmod(0o777)

        def watch() -> list[str]:
            with Stream(self.path) as stream:
                stream.attach(scope="shared", space="team", mode="observe", after=0)
                (seen / "attached").touch()
                heard = stream.until(lambda f: kind(f) == "error")
                return [f["event"]["data"].get("code", kind(f)) for f in heard]

        def act(watching: Callable[[], bool]) -> None:
            with Stream(self.path) as mine:
                mine.attach(scope="shared", space="team")
                self.house.wait_until(watching, "the watcher")
                mine.input("r1", "while they may")
                mine.done("r1")
                time.sleep(0.2)
                self.policy.write_text(f"{rule}uids = [0]\n")
                self.house.running[SLAVE].send_signal(signal.SIGHUP)
                self.house.wait_until(
                    lambda: "SIGHUP: 1 rules" in self.house.output(SLAVE), "the reload"
                )
                mine.input("r2", "a secret")
                mine.done("r2")
                time.sleep(0.2)

        acting = threading.Thread(target=act, args=((seen / "attached").exists,), daemon=True)
        acting.start()
        told = as_nobody(watch)
        acting.join(20)
        self.assertEqual(told.count("done"), 1, told)
        self.assertIn("forbidden", told)


class HalfCloseTests(PeerCase):
    def test_half_close_v1_I35(self) -> None:
        """At each point of a request: the answer comes, and the slave is as it was."""
        self.house.write_config('[agents.echo]\nruntime = "echo"\ndelay = 0.02\n')
        path = self.house.start()
        before = len(descriptors(self.house.pid))
        for sent, expected in (
            (b"", None),
            (b'{"op":"send","input":"hi"', None),
            (b'{"op":"ping"}\n', "pong"),
            (b'{"op":"send","input":"a b c"}\n', "done"),
            (b'{"op":"resume","after":"0"}\n', "done"),
        ):
            with Line(path) as line:
                line.send(sent)
                line.half_close()
                lines = line.rest()
            self.assertEqual(lines[-1]["type"] if lines else None, expected, sent)
        with socket.socket(socket.AF_UNIX) as gone:
            gone.connect(path)
            gone.sendall(b'{"op":"send","id":"alone","input":"a b c"}\n')
        # Who is gone altogether has asked for it all the same.
        self.house.wait_until(
            lambda: any(
                kind(f) == "done" and f["correlation"]["request_id"] == "alone"
                for f in self.house.facts()
            ),
            "the run to end",
        )
        self.assertTrue(is_contiguous(f["session_seq"] for f in self.house.facts()))
        self.house.wait_until(
            lambda: len(descriptors(self.house.pid)) <= before + 4, "the connections to close"
        )
