"""A slave whose disk fails it: torn and damaged logs, and a disk that is full."""

from __future__ import annotations

import os
import time

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from cortextx.interaction.master.events import Detached, Disconnected, Done
from tests.integration.slave_faults import (
    FaultyHouse,
    Talker,
    facts_of,
    is_contiguous,
    one_end_each,
    whole_session,
)
from tests.integration.slave_harness import SLAVE, Stream, ask, kind
from tests.integration.test_disk_full import fill_up, small_disk
from tests.integration.test_master import MasterCase, Reader

KIB, MIB = 1024, 1024 * 1024


class DiskCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.house = FaultyHouse(self)  # type: ignore[arg-type]  # all it wants is addCleanup


class DamageTests(DiskCase):
    """I13: what cannot be proved is not guessed, and it is nobody else's trouble."""

    def damaged(self, session: str) -> dict[str, object]:
        """The error of an attach."""
        with Stream(self.path) as stream:
            refused = stream.attach(session=session, after=0)
            self.assertEqual(kind(refused), "error", refused)
            found: dict[str, object] = refused["event"]["data"]
            return found

    def say(self, session: str, *words: str) -> list[tuple[int, str, str]]:
        """Say these; answers all facts of the session."""
        with Stream(self.path) as stream:
            self.assertEqual(kind(stream.attach(session=session)), "attached")
            for word in words:
                stream.input(f"{session}-{word}", word)
                stream.done(f"{session}-{word}")
        return facts_of(whole_session(self.path, session))

    def test_torn_and_damaged_logs_stop_their_session_only(self) -> None:
        """A torn last line, a damaged middle, a missing line, NULs: `session_io` for that
        session, before and after a restart; the others live, and repair mends each."""
        self.house.write_config("[slave]\nidle_seconds = 0.1\n")
        self.path = self.house.start()
        names = ("torn", "middle", "missing", "zeros", "sound")
        whole = {name: self.say(name, "one", "two", "three") for name in names}
        for name in names:
            self.house.wait_until(
                lambda name=name: (self.house.log(name).parent / "state").exists(), "the end"
            )
        self.house.stop(SLAVE)
        kept = {}
        for name, change in (
            ("torn", lambda lines: [*lines[:-1], lines[-1][:20]]),
            ("middle", lambda lines: [*lines[:7], b"x" + lines[7][1:], *lines[8:]]),
            ("missing", lambda lines: [*lines[:4], *lines[5:]]),
            ("zeros", lambda lines: [*lines, b"\0" * 100]),
        ):
            log = self.house.log(name)
            lines = log.read_bytes().splitlines(keepends=True)
            log.write_bytes(b"".join(change(lines)))
            kept[name] = {"torn": 14, "middle": 7, "missing": 4, "zeros": 15}[name]
        self.path = self.house.start()
        with Talker(self.path, "sound") as talker:
            for name in kept:
                before = self.house.log(name).read_bytes()
                for _ in range(2):
                    told = self.damaged(name)
                    self.assertEqual((told["code"], told["retryable"]), ("session_io", False))
                once = ask(self.path, {"op": "send", "session": name, "input": "hi"})
                self.assertEqual([each["code"] for each in once], ["EIO"], name)
                self.assertEqual(self.house.log(name).read_bytes(), before)
        self.assertIsNone(talker.fault)
        self.assertGreater(talker.count, 0)
        for name, count in kept.items():
            # While the slave runs: its session is open to nobody, so that repair may have it.
            said = self.house.cortextx("session", "repair", name).stdout
            self.assertIn("bytes", said)
            found = self.say(name, "four")
            self.assertEqual(found[:count], whole[name][:count])
            one_end_each(self.house.facts(name))
            self.assertTrue(is_contiguous(seq for seq, _, _ in found))
            aside = [p.name for p in self.house.log(name).parent.iterdir() if "events" in p.name]
            self.assertEqual(len(aside), 2, aside)

    def test_a_log_that_is_cut_under_a_living_slave(self) -> None:
        """Whoever truncates it: a reader is told, nothing is made up, and the slave lives."""
        self.path = self.house.start()
        whole = self.say("cut", *map(str, range(200)))
        self.house.stop(SLAVE)
        self.path = self.house.start()
        with Stream(self.path) as holder, Stream(self.path) as stream:
            self.assertEqual(kind(holder.attach(session="cut")), "attached")
            os.truncate(self.house.log("cut"), 100_000)
            stream.attach(session="cut", after=0)
            seen = stream.until(lambda f: kind(f) == "error")
            self.assertEqual(seen[-1]["event"]["data"]["code"], "session_io")
            self.assertEqual(facts_of(seen), whole[: len(seen) - 1])
        self.assertEqual(ask(self.path, {"op": "ping"}), [{"type": "pong"}])


class WaitingTests(MasterCase):
    async def test_a_master_of_ours_waits_for_room(self) -> None:
        """It is told, and comes back by itself with its request; nothing is missing."""
        disk = self.house.state / "sessions"
        small_disk(self, str(disk), 8)
        self.house.start()
        mine, other = await self.reader(self.master()), await self.reader(self.master())
        fill_up(str(disk / "ballast"), 200 * KIB)
        asked = [Deferred.fromCoroutine(self.ask(mine, number)) for number in range(8)]
        for reader in (mine, other):
            await reader.until(lambda r: r.of(Disconnected))
            self.assertEqual(reader.of(Detached), [])
        os.unlink(disk / "ballast")
        ends = [await each for each in asked]
        self.assertLessEqual(set(ends), {"completed", "interrupted"})
        for reader in (mine, other):
            await reader.until(lambda r: len(r.of(Done)) == 8)
        self.whole(mine, other)
        self.assertEqual(sorted(one_end_each(self.house.facts()).values()), sorted(ends))

    async def ask(self, reader: Reader, number: int) -> str:
        """Say something long; how that ended."""
        run = await reader.session.input("x" * 40_000, request_id=f"r{number}")
        return (await run.ended()).status


class FullTests(DiskCase):
    def test_a_full_disk_costs_an_error_and_no_fact(self) -> None:
        """I13: errors while it is full, what was durable stays readable by who attaches once
        there is room, the same requests are done then, nothing is lost or doubled."""
        disk = self.house.state / "sessions"
        small_disk(self, str(disk), 8)
        self.house.write_config("[slave]\nidle_seconds = 0.2\n")
        path = self.house.start()
        streams = {name: Stream(path) for name in ("a", "b")}
        for name, stream in streams.items():
            stream.attach(session=name)
        fill_up(str(disk / "ballast"), 300 * KIB)
        seen: dict[str, list[dict[str, object]]] = {name: [] for name in streams}
        refused: dict[str, str] = {}
        asked: list[tuple[str, str]] = []
        for number in range(40):
            for name, stream in streams.items():
                if name in refused:
                    continue
                request_id = f"{name}{number}"
                asked.append((name, request_id))
                stream.input(request_id, "x" * 20_000)
                got = stream.until(
                    lambda f, r=request_id: (
                        kind(f) == "error"
                        or (kind(f) == "done" and f["correlation"]["request_id"] == r)
                    )
                )
                seen[name] += got
                if kind(got[-1]) == "error":
                    refused[name] = got[-1]["event"]["data"]["code"]
        self.assertEqual(refused, dict.fromkeys(streams, "session_io"))
        # Still full: attaching fails or works, in a bounded time, and the slave lives.
        for name, stream in streams.items():
            begun = time.monotonic()
            again = stream.attach("again", name, after=0)
            self.assertIn(kind(again), ("attached", "error"))
            self.assertLess(time.monotonic() - begun, 5)
            stream.close()
        self.assertEqual(ask(path, {"op": "ping"}), [{"type": "pong"}])
        os.unlink(disk / "ballast")
        for name in streams:
            with Stream(path) as stream:
                self.assertEqual(kind(stream.attach(session=name)), "attached")
                for owner, request_id in asked:
                    if owner == name:
                        stream.input(request_id, "x" * 20_000)
                        status = stream.done(request_id)[-1]["event"]["data"]["status"]
                        self.assertIn(status, ("completed", "interrupted"))
                stream.input(f"{name}-last", "room")
                stream.done(f"{name}-last")
            found = whole_session(path, name)
            ends = one_end_each(found)
            expected = {r for owner, r in asked if owner == name} | {f"{name}-last"}
            self.assertEqual(set(ends), expected)
            self.assertEqual(facts_of(found), facts_of(self.house.facts(name)))
            promised = facts_of(seen[name])
            self.assertEqual(facts_of(found)[: len(promised)], promised)
            self.assertLessEqual(list(ends.values()).count("interrupted"), 1)
        self.house.stop(SLAVE)
        for name in streams:
            self.assertIn("sound", self.house.cortextx("session", "verify", name).stdout)
