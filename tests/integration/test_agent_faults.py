"""An agent whose disk fills up, whose buffer is damaged, and whose input is monstrous.

CORTEXTX_LONG_LINE_MB makes the long line longer or shorter.
"""

from __future__ import annotations

import base64
import json
import os
import signal
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.integration.agent_faults import (
    accepted,
    agent_pid,
    audit,
    caught_up,
    file_source,
    memory,
    messages,
    numbers,
    status,
    write_lines,
)
from tests.integration.harness import AGENT, Installation
from tests.integration.test_disk_full import MIB, exhaust, fill_up, small_disk

LONG_LINE_MB = int(os.environ.get("CORTEXTX_LONG_LINE_MB", "100"))
PART = 65_536


class Case(SynchronousTestCase):
    def setUp(self) -> None:
        self.site = Installation(self)
        self.logs = self.site.root / "logs"
        self.logs.mkdir()
        self.log = self.logs / "app.log"
        self.log.touch()
        self.site.write_agent_config(file_source(self.logs / "*.log"), agent="allow_sources = []\n")

    def begin(self, host: str) -> None:
        """A server, and an agent that is connected to it."""
        self.site.start_server()
        self.site.enroll(host)
        self.site.start_agent()
        self.site.wait_until(lambda: self.site.hosts()[0]["connected"], "the agent")

    def again(self, seconds: float = 60) -> None:
        """The server is back; wait until the agent has nothing left to tell it."""
        self.site.start_server()
        self.site.cortextx("agent", "retry")
        self.site.wait_until(lambda: caught_up(self.site), "all of it", seconds)


class DiskFullTests(Case):
    def test_a_full_disk_loses_nothing_and_needs_no_restart(self) -> None:
        """While nothing fits the agent says so, its source rests, its identity stays whole;
        once there is room all arrives, though the same process was never restarted."""
        small_disk(self, str(self.site.state / "agent"), 48)
        self.begin("full")
        pid = agent_pid(self.site)
        write_lines(self.log, 0, 500, 200)
        self.site.wait_until(lambda: accepted(self.site) >= 500, "the first lines")
        self.site.kill_server()
        ballast = self.site.state / "agent" / "ballast"
        fill_up(str(ballast), 2 * MIB)
        write_lines(self.log, 500, 4000, 2000)
        self.site.wait_until(lambda: status(self.site)["buffer_fault"], "the disk to be full")
        self.site.wait_until(
            lambda: status(self.site)["sources_paused_by"] == ["buffer"], "the source to rest"
        )
        found = status(self.site)
        self.assertEqual((found["buffer_pressure"], found["evicted_entries"]), ("hard", 0))
        # What was buffered can be sent with the disk as full as it is.
        self.site.start_server()
        self.site.cortextx("agent", "retry")
        self.site.wait_until(lambda: not status(self.site)["backlog_entries"], "what was buffered")
        self.assertGreater(accepted(self.site), 1000)
        self.site.kill_server()
        write_lines(self.log, 4500, 500, 2000)
        ballast.unlink()
        self.again()
        self.site.wait_until(lambda: accepted(self.site) >= 5000, "all lines")
        self.assertEqual(numbers(messages(self.site, "app.log")), list(range(5000)))
        self.assertEqual(agent_pid(self.site), pid)
        found = status(self.site)
        self.assertEqual((found["buffer_fault"], found["health"]), (None, "green"))
        gaps, end = audit(self.site, "full")
        self.assertEqual((gaps, end["complete"]), ([], True))

    def test_a_disk_without_a_byte_left_where_all_is_acked(self) -> None:
        """What the acknowledged entries still take is given back, so lines go on arriving
        though nobody frees anything (F19)."""
        small_disk(self, str(self.site.state / "agent"), 48)
        self.begin("acked")
        pid = agent_pid(self.site)
        write_lines(self.log, 0, 1000, 2000)
        self.site.wait_until(lambda: accepted(self.site) >= 1000, "the first lines")
        self.site.wait_until(lambda: caught_up(self.site), "their acknowledgement")
        exhaust(str(self.site.state / "agent" / "ballast"))
        write_lines(self.log, 1000, 200, 2000)
        self.site.wait_until(lambda: accepted(self.site) >= 1200, "the others")
        self.assertEqual(numbers(messages(self.site, "app.log")), list(range(1200)))
        self.assertEqual(agent_pid(self.site), pid)
        gaps, end = audit(self.site, "acked")
        self.assertEqual((gaps, end["complete"]), ([], True))


class DamageTests(Case):
    def test_a37_bytes_changed_in_the_last_block(self) -> None:
        """Nothing behind it says that it was whole once; it is kept aside and told all the
        same, and once acknowledged it does not come back at the next start."""
        self.begin("last")
        self.site.kill_server()
        write_lines(self.log, 0, 10, 200)
        self.site.wait_until(lambda: status(self.site)["last_seq"] >= 10, "the buffer")
        self.site.stop(AGENT, signal.SIGKILL)
        segment = max((self.site.state / "agent" / "buffer").glob("*.seg"))
        data = segment.read_bytes()
        at = data.rindex(b"n=9 ")
        segment.write_bytes(data[:at] + b"#" + data[at + 1 :])
        self.site.start_agent()
        self.again()
        told = status(self.site)
        self.assertEqual(told["health"], "red")
        self.assertGreater(told["damaged_entries"], 0)
        (gap,), _ = audit(self.site, "last")
        self.assertEqual(gap["cause"], "damaged")
        # The file is read again from the checkpoint before that block: nothing is missing.
        self.assertEqual(set(numbers(messages(self.site, "app.log"))), set(range(10)))
        self.site.cortextx("agent", "buffer", "quarantine", "--acknowledge")
        for _ in range(2):
            self.site.stop(AGENT, signal.SIGKILL)
            self.site.start_agent()
            self.site.wait_until(lambda: caught_up(self.site), "the agent")
            told = status(self.site)
            self.assertEqual((told["health"], told["unacknowledged"]), ("green", []))

    def test_a37_bytes_flipped_in_the_middle(self) -> None:
        """The damaged stretch is kept aside, its exact numbers are told as a gap with its
        cause, all others arrive, and health is red until somebody has taken note."""
        self.begin("damaged")
        self.site.kill_server()
        count = 6000
        write_lines(self.log, 0, count, 2000)
        self.site.wait_until(lambda: status(self.site)["last_seq"] >= count, "the buffer")
        self.site.stop(AGENT, signal.SIGKILL)
        segments = sorted((self.site.state / "agent" / "buffer").glob("*.seg*"))
        self.assertGreater(len(segments), 2, os.listdir(self.site.state / "agent" / "buffer"))
        flip(segments[1])
        self.site.start_agent()
        self.again()
        stored = [row for row in self.site.tail_all() if row["source"].endswith("app.log")]
        seen = {row["seq"] for row in self.site.tail_all()}
        missing = [seq for seq in range(1, accepted(self.site) + 1) if seq not in seen]
        self.assertTrue(0 < len(missing) < count / 3, len(missing))
        (gap,), end = audit(self.site, "damaged")
        self.assertEqual((gap["first"], gap["last"]), (missing[0], missing[-1]))
        self.assertEqual((gap["entries"], gap["cause"]), (len(missing), "damaged"))
        self.assertEqual(end["missing_entries"], len(missing))
        found = numbers([row["message"] for row in stored])
        self.assertEqual(found, sorted(set(found)))
        self.assertEqual(len(found) + len(missing), count)
        told = status(self.site)
        self.assertEqual((told["health"], told["damaged_entries"]), ("red", len(missing)))
        self.assertTrue(told["unacknowledged"])
        self.site.cortextx("audit", "damaged", code=5)


def flip(path: Path) -> None:
    """Turn some bits in the middle of a file."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        data = file.read(64)
        file.seek(-len(data), os.SEEK_CUR)
        file.write(bytes(byte ^ 0x55 for byte in data))


class InputTests(Case):
    def test_a_line_of_100_mb(self) -> None:
        """It arrives in parts that make it up again (F17); the line behind it is whole, and
        memory does not follow the line."""
        self.begin("long")
        chunk = b"".join(b"%07d-" % n for n in range(131_072))
        with self.log.open("wb") as file:
            for _ in range(LONG_LINE_MB):
                file.write(chunk[:1_000_000])
            file.write(b"\nthe next\n")
        count = -(-LONG_LINE_MB * 1_000_000 // PART)
        self.site.wait_until(lambda: accepted(self.site) >= count + 1, "the line", 90)
        pid = agent_pid(self.site)
        peak = memory(pid, "VmHWM")
        at = made = 0
        whole = (chunk[:1_000_000] * 2).decode()
        for row in self.site.tail_all():
            if not row["source"].endswith("app.log"):
                continue
            text, made = row["message"], made + 1
            if made <= count:
                start = at % 1_000_000
                self.assertEqual(text, whole[start : start + len(text)])
                self.assertEqual(marks(row)["part"], made)
                at += len(text)
                if made == count:
                    self.assertEqual(marks(row)["parts"], count)
        self.assertEqual((at, text, made), (LONG_LINE_MB * 1_000_000, "the next", count + 1))
        self.assertLess(peak, 90)

    def test_a34_bytes_that_are_no_text(self) -> None:
        """Bad bytes and NULs, in lines and in a file's name, change nothing of what stands
        beside them, and the bytes themselves are kept (F16, F32, F43)."""
        odd = os.path.join(os.fsencode(self.logs), b"odd \xff\n.log")
        bad = [b"\xff\xfe bad \x80", b"half \xe2\x82", b"\xed\xa0\x80 surrogate", b"in\0side"]
        with open(odd, "wb") as file:
            for line in bad:
                file.write(b"before\n" + line + b"\nafter\n")
            file.write(b"\0" * 3_000_000 + b"behind nuls\n" + "grüße €\n".encode())
        self.begin("bytes")
        wanted = 3 * len(bad) + 2
        self.site.wait_until(
            lambda: sum("odd" in row["source"] for row in self.site.tail_all()) >= wanted,
            "all lines",
        )
        rows = [row for row in self.site.tail_all() if "odd" in row["source"]]
        self.assertEqual(len(rows), wanted)
        self.assertEqual({row["source"] for row in rows}, {f"file:{self.logs}/odd %FF%0A.log"})
        for at, line in enumerate(bad):
            before, it, after = rows[3 * at : 3 * at + 3]
            self.assertEqual((before["message"], after["message"]), ("before", "after"))
            if 0 in line:
                self.assertEqual(it["message"], "in\ufffdside")
            else:
                self.assertIn("\ufffd", it["message"])
                self.assertEqual(base64.b64decode(marks(it)["raw"]), line)
        self.assertEqual([row["message"] for row in rows[-2:]], ["behind nuls", "grüße €"])
        self.assertEqual(marks(rows[-2])["nuls"], 3_000_000)


def marks(row: dict) -> dict:
    """The marks of ours in a row."""
    metadata = row["metadata"]
    if isinstance(metadata, str):
        metadata = json.loads(metadata)
    return metadata["cortextx"]
