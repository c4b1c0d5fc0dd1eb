"""The main job under fire: kill -9 of server and agent in a loop, with log rotation.

Nothing may be lost, doubled or reordered, and no gap may be recorded. Where losses are
made on purpose, the audit tells of them exactly. The rounds are few here;
CORTEXTX_KILL_ROUNDS asks for more.
"""

from __future__ import annotations

import json
import os
import random
import socket
import threading
import time
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.agent_faults import (
    accepted,
    caught_up,
    file_source,
    messages,
    numbers,
    status,
    write_lines,
)
from tests.integration.harness import Installation

ROUNDS = int(os.environ.get("CORTEXTX_KILL_ROUNDS", "12"))
SEED = int(os.environ.get("CORTEXTX_KILL_SEED", "0")) or random.randrange(1, 2**32)


class LogWriter(threading.Thread):
    """Writes numbered lines to a log and rotates it by rename, until it is stopped.

    `lines` is the truth: every line, in the order in which it was written.
    """

    def __init__(self, path: Path, chance: random.Random, keep: int = 400) -> None:
        super().__init__(daemon=True)
        self.path = path
        self.chance = chance
        self.keep = keep
        self.lines: list[str] = []
        self.rotations = 0
        self._done = threading.Event()

    def run(self) -> None:
        log = self.path.open("ab", buffering=0)
        while not self._done.is_set():
            batch = [self._line() for _ in range(self.chance.randint(1, 60))]
            data = "".join(line + "\n" for line in batch).encode()
            if self.chance.random() < 0.3:
                # A write may end in the middle of a line; the rest comes later.
                cut = self.chance.randrange(1, len(data))
                log.write(data[:cut])
                time.sleep(0.01)
                log.write(data[cut:])
            else:
                log.write(data)
            self.lines += batch
            if self.chance.random() < 0.02:
                self.rotations += 1
                self.path.rename(self.path.with_name(f"{self.path.name}.{self.rotations}"))
                late = self._line()
                log.write(late.encode() + b"\n")
                self.lines.append(late)
                log.close()
                log = self.path.open("ab", buffering=0)
            time.sleep(0.015)
        log.close()

    def stop(self) -> None:
        self._done.set()
        self.join(30)

    def _line(self) -> str:
        number = len(self.lines)
        return f"n={number} u={self.chance.getrandbits(64):016x} " + "x" * self.chance.randint(
            0, self.keep
        )


class KillLoopTests(SynchronousTestCase):
    """Acceptance of the walking skeleton, with real processes that really die."""

    def test_kill_9_of_either_process_in_a_loop_loses_and_doubles_nothing(self) -> None:
        chance = random.Random(SEED)
        site = Installation(self)
        logs = site.root / "logs"
        logs.mkdir()
        log = logs / "app.log"
        log.touch()
        site.start_server()
        site.enroll("kill-host")
        site.write_agent_config(
            f'[[sources]]\nkind = "file"\npath = "{logs}/*.log"\n',
            agent="allow_sources = []\n",
        )
        site.start_agent()
        writer = LogWriter(log, chance)
        writer.start()
        try:
            for _ in range(ROUNDS):
                time.sleep(chance.uniform(0.1, 1.5))
                if chance.random() < 0.5:
                    site.kill_server()
                    time.sleep(chance.choice((0.0, 0.0, 0.5)))
                    site.start_server()
                else:
                    site.kill_agent()
                    time.sleep(chance.choice((0.0, 0.0, 0.5)))
                    site.start_agent()
        finally:
            writer.stop()
        stored = self.wait_for(site, len(writer.lines))
        messages = [entry["message"] for entry in stored]
        self.assertEqual(
            messages,
            writer.lines,
            f"seed {SEED}: {len(messages)} stored, {len(writer.lines)} written, "
            f"{len(set(messages))} distinct, {writer.rotations} rotations",
        )
        seqs = [entry["seq"] for entry in site.tail_all()]
        self.assertEqual(seqs, list(range(1, len(seqs) + 1)), f"seed {SEED}")
        (host,) = site.hosts()
        self.assertEqual((host["gap_count"], host["lost_entries"]), (0, 0), f"seed {SEED}")

    def wait_for(self, site: Installation, count: int) -> list[dict]:
        """All entries of the log, once `count` of them are there or none came for 20 s."""
        last, since = -1, time.monotonic()
        while True:
            stored = [e for e in site.tail_all() if e["source"].endswith("app.log")]
            if len(stored) >= count:
                time.sleep(1)
                return [e for e in site.tail_all() if e["source"].endswith("app.log")]
            if len(stored) != last:
                last, since = len(stored), time.monotonic()
            elif time.monotonic() - since > 20:
                return stored
            time.sleep(0.5)


def read_whole(site: Installation, *paths: Path) -> bool:
    """Whether the agent has read these files to their ends."""
    known = {row["path"]: row["offset"] for row in status(site)["files"]}
    return all(known.get(str(path)) == path.stat().st_size for path in paths)


class AuditTests(SynchronousTestCase):
    """Losses made on purpose, among kills of both ends: the audit is the truth."""

    def test_the_audit_equals_the_injected_truth(self) -> None:
        """A copytruncate takes lines that a resting source could not read, and a flood pushes
        the oldest entries out of the buffer, with kills in between. Whatever is not stored
        is in `cortextx audit`: each missing number with its cause, and the lost bytes of
        the truncated file to the byte; nothing else is missing, and nothing is doubled."""
        chance = random.Random(SEED)
        site = Installation(self)
        logs = site.root / "logs"
        logs.mkdir()
        log, cut = logs / "app.log", logs / "cut.log"
        log.touch()
        cut.touch()
        flood = site.root / "flood"
        site.write_agent_config(
            file_source(log, "app")
            + file_source(cut, "cut")
            + f'[[sources]]\nkind = "custom"\nname = "flood"\ntype = "syslog-unix"\n'
            f'listen = "{flood}"\n',
            agent="allow_sources = []\nbuffer_soft_mib = 32\nbuffer_hard_mib = 40\n",
        )
        site.start_server()
        site.enroll("truth")
        site.start_agent()
        writer = LogWriter(log, chance)
        writer.start()
        try:
            write_lines(cut, 0, 200, 100)
            for _ in range(max(2, ROUNDS // 4)):
                time.sleep(chance.uniform(0.1, 1.0))
                site.kill_server()
                site.start_server()
                time.sleep(chance.uniform(0.1, 1.0))
                site.kill_agent()
                site.start_agent()
        finally:
            writer.stop()
        site.cortextx("agent", "retry")
        count = len(writer.lines) + 200
        site.wait_until(
            lambda: caught_up(site) and read_whole(site, log, cut), "all before the losses", 60
        )
        stored = len(messages(site, "app.log")) + len(messages(site, "cut.log"))
        self.assertEqual(stored, count, f"seed {SEED}")
        before = accepted(site)
        site.kill_server()
        sent = self.pour(site, str(flood), 0, 36 * 2**20)
        site.kill_agent()
        site.start_agent()
        site.wait_until(lambda: status(site)["sources_paused_by"] == ["buffer"], "a full buffer")
        lost_bytes = write_lines(cut, 200, 300, 100)
        # It sees the file grow, and cannot read it.
        time.sleep(2.5)
        os.truncate(cut, 0)
        write_lines(cut, 500, 100, 100)
        sent = self.pour(site, str(flood), sent, 12 * 2**20)
        site.start_server()
        site.cortextx("agent", "retry")
        site.wait_until(lambda: accepted(site) > before, "some of it")
        site.kill_server()
        site.start_server()
        site.cortextx("agent", "retry")
        site.wait_until(lambda: caught_up(site), "all after the losses", 60)
        site.wait_until(lambda: accepted(site) == status(site)["last_seq"], "the last of it")
        told = json.loads(site.cortextx("audit", "truth", "--json", code=5).stdout)
        rows = site.tail_all()
        by = {end: [r["message"] for r in rows if r["source"].endswith(end)] for end in
              ("app.log", "cut.log", "flood")}  # fmt: skip
        said = f"seed {SEED}, {told}"
        self.assertEqual(by["app.log"], writer.lines, said)
        self.assertEqual(numbers(by["cut.log"]), [*range(200), *range(500, 600)], said)
        found = numbers(by["flood"])
        self.assertEqual(found, sorted(set(found)), said)
        seqs = [row["seq"] for row in rows]
        self.assertEqual(seqs, sorted(set(seqs)), said)
        missing = set(range(1, accepted(site) + 1)) - set(seqs)
        evicted = [gap for gap in told["gaps"] if gap["cause"] == "evicted"]
        truncated = [gap for gap in told["gaps"] if gap["cause"] == "truncated"]
        self.assertEqual(len(evicted) + len(truncated), len(told["gaps"]), said)
        in_gaps = {n for gap in evicted for n in range(gap["first"], gap["last"] + 1)}
        self.assertEqual(in_gaps, missing, said)
        self.assertEqual(told["missing_entries"], len(missing), said)
        self.assertGreater(min(missing), before, said)
        # What was evicted are the flood's own lines, and all of those that did not come.
        self.assertEqual(sent - len(found), len(missing), said)
        (gap,) = truncated
        self.assertTrue(gap["source"].endswith("cut.log"), said)
        self.assertIn(f"{lost_bytes} bytes unread", gap["detail"], said)

    def pour(self, site: Installation, path: str, first: int, size: int) -> int:
        """Send so many bytes of numbered lines to a socket, as fast as they are buffered;
        answers the number of the next line."""
        line = 30_000
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            site.wait_until(lambda: not out.connect_ex(path), "the socket")
            out.settimeout(10)
            known = status(site)["last_seq"]
            for number in range(first, first + size // line):
                out.send(b"<14>n=%d " % number + b"x" * line)
                if number % 50 == 49:
                    wanted = known + number - first + 1
                    site.wait_until(lambda n=wanted: status(site)["last_seq"] >= n, "the buffer")
            done = first + size // line
            wanted = known + done - first
            site.wait_until(lambda: status(site)["last_seq"] >= wanted, "the buffer")
        return done
