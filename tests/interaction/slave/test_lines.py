"""Lines of events.jsonl, and that the file alone tells everything (I36; early test 3)."""

from __future__ import annotations

import json
import re

from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.exchange import Delta, Message, Notify, Origin, RequestApproval, ToolCall
from cortextx.errors import LocalProtocolError
from cortextx.interaction import data, v2
from cortextx.interaction.correlation import Correlation
from cortextx.interaction.slave.ledger import Ledger
from cortextx.interaction.slave.lines import (
    MAX_FACT_BYTES,
    Beside,
    Ids,
    data_of,
    encode_line,
    read_line,
    tail_of,
    timestamp,
)
from tests.interaction.slave.mailbox import WALL, Mailbox, an_input
from tests.interaction.slave.rebuild import rebuild

IDS = Ids("r1", "run-1")
FACTS = [
    (data.Accepted(), IDS),
    (data.Started("m"), IDS),
    (data.Message("assistant", 'é ,"ts":"x" ,"x":{'), IDS),
    (data.Tool("c", "n", "requested"), IDS),
    (data.CommandResolved("run-1.1", None, "accepted"), IDS),
    (data.SessionState("active", "cancelling", 1, 7), Ids("r1")),
    (data.Done("completed"), IDS),
]


def a_story() -> Mailbox:
    """A log with all kinds of facts; the last run has not ended."""
    box = Mailbox()
    box.input("r1", "one")
    (run,) = box.started()
    call = ToolCall("r", run, "call-1", "rm", "requested")
    box.emit(run, Delta("r", run, "o"), call)
    box.ask(run, RequestApproval("rm", Raw(b'{"path":"/"}')), "effect-1")
    box.answer(run, f"{run}.1")
    box.ask(run, Notify("info", "said"))
    box.emit(run, ToolCall("r", run, "call-1", "rm", "completed"))
    box.emit(run, Message("r", run, "assistant", "x" * 250_000))
    box.end(run)
    box.input("r2", "two")
    box.input("r3", "three")
    box.cancel(box.started()[-1])
    box.end(box.started()[-1], "cancelled")
    box.emit(box.started()[-1], ToolCall("r", "r", "call-2", "cp", "requested"))
    return box


class LineTests(SynchronousTestCase):
    """One line."""

    def test_there_and_back_I36(self) -> None:
        """A fact's line is its frame without connection and attachment, plus ts and x."""
        for seq, (content, ids) in enumerate(FACTS, 1):
            for beside in (None, Beside(claim="00" * 32, uid=7, origin=Origin("t"))):
                line = encode_line(content, ids, seq=seq, wall=WALL, beside=beside)
                correlation = Correlation("conn", "att", ids.request_id, ids.run_id)
                frame = v2.encode(data.build(content, correlation, session_seq=seq))
                self.assertEqual(v2.addressed(tail_of(line), "conn", "att"), frame)
                members = json.loads(line)
                sent = json.loads(frame)
                for name in ("connection_id", "attachment_id"):
                    self.assertNotIn(name, members["correlation"])
                    del sent["correlation"][name]
                self.assertEqual("x" in members, beside is not None)
                members.pop("x", None)
                self.assertEqual(members.pop("ts"), timestamp(WALL).decode())
                self.assertEqual(members, sent)
                self.assertEqual(read_line(line).session_seq, seq)
                self.assertEqual(data_of(line), content)

    def test_a_fact_that_is_no_frame_for_some_attachment_is_not_written(self) -> None:
        """A fact that just fits is a frame under the longest ids; a longer one is refused."""
        longest = '"' * 128
        fits = ""
        for size in range(MAX_FACT_BYTES - 400, MAX_FACT_BYTES):
            content = data.Message("assistant", "x" * size)
            try:
                line = encode_line(content, IDS, seq=1, wall=WALL)
            except LocalProtocolError:
                break
            fits = v2.decode(v2.addressed(tail_of(line), longest, longest)).kind
        self.assertEqual(fits, "event")
        self.assertLess(size, MAX_FACT_BYTES - 1)

    def test_no_line_is_made_of_ids_or_kinds_that_no_frame_has(self) -> None:
        """A run's fact without its run, odd ids, or a kind that is never durable."""
        for content, ids in (
            (data.Done("completed"), Ids("r1")),
            (data.Started(None), Ids("", "run")),
            (data.Detach(), Ids()),
        ):
            with self.assertRaises(LocalProtocolError):
                encode_line(content, ids, seq=1, wall=WALL)

    def test_any_order_of_members_is_read_and_x_is_never_sent(self) -> None:
        """A line in another form makes the same frame, without its x."""
        line = encode_line(
            data.Done("completed"), IDS, seq=3, wall=WALL, beside=Beside(cwd="/secret")
        )
        members = json.loads(line)
        for order in (sorted(members), sorted(members, reverse=True)):
            other = json.dumps({name: members[name] for name in order}).encode()
            tail = tail_of(other)
            self.assertNotIn(b"secret", tail)
            self.assertNotIn(b'"ts"', tail)
            frame = v2.decode(v2.addressed(tail, "c", "a"))
            self.assertEqual(data.read(frame), data.Done("completed"))

    def test_an_old_log_with_a_lone_surrogate_loads_B35(self) -> None:
        """A lone surrogate of an old writer is read and sent as U+FFFD."""
        line = encode_line(data.Message("assistant", "AB"), IDS, seq=1, wall=WALL)
        line = line.replace(b'"AB"', b'"\\ud800"')
        self.assertEqual(data_of(line), data.Message("assistant", "\ufffd"))
        v2.decode(v2.addressed(tail_of(line), "c", "a"))


class AloneTests(SynchronousTestCase):
    """Early test 3."""

    def test_a_script_rebuilds_claims_transcript_and_messages(self) -> None:
        """What the machine knows stands in the file, for anybody to read."""
        box = a_story()
        found = rebuild(box.file)
        self.assertEqual(set(found.claims), {"r1", "r2", "r3", "c1"})
        for request_id, (kind, digest, run, seq, done) in found.claims.items():
            known = box.machine.ledger.claim(request_id)
            assert known is not None
            self.assertEqual((known.kind, known.run, known.accepted), (kind, run, seq))
            self.assertEqual(known.digest.hex(), digest[:32])
            if kind == "input":
                self.assertEqual(known.done, done)
        said = [("user", "one"), ("assistant", "x" * 250_000), ("user", "two"), ("user", "three")]
        self.assertEqual(found.messages, said)
        self.assertEqual(set(found.unfinished), set(box.machine.ledger.unfinished))
        self.assertEqual(len(found.transcript), found.head)

    def test_cut_at_every_byte_B25(self) -> None:
        """Whatever prefix a crash leaves: a torn one is told, any other recovers to one end."""
        box = a_story()
        whole = rebuild(box.file)
        small = re.sub(rb"x{1000,}", b"x", box.file)  # the cuts, not the text, are the point
        ends = [at for at in range(1, len(small) + 1) if small[at - 1 : at] == b"\n"]
        self.assertLess(len(small), 20_000)
        for cut in range(len(small) + 1):
            prefix = small[:cut]
            if cut not in (0, *ends):
                self.assertRaises(ValueError, rebuild, prefix)
                continue
            before = rebuild(prefix)
            again = Mailbox(prefix.splitlines())
            after = rebuild(again.file)
            self.assertTrue(again.file.startswith(prefix))
            self.assertEqual(after.unfinished, {})
            self.assertFalse(any(after.open_calls.values()))
            self.assertEqual(before.claims.keys(), after.claims.keys())
            self.assertLessEqual(before.claims.keys(), whole.claims.keys())
            new = after.transcript[before.head :]
            self.assertEqual(sum(kind == "done" for _, kind, _ in new), len(before.unfinished))
            for _, kind, text in new:
                self.assertIn("interrupted", text, kind)
            self.assertEqual(Mailbox(again.log).log, again.log)  # recovery is done once

    def test_what_retention_carried_on_is_older_than_what_it_stands_in_I38(self) -> None:
        """A carried claim is known; its directory and its end are not taken for the newest."""
        box = Mailbox()
        for n, (cwd, status) in enumerate((("/old", "interrupted"), ("/new", "completed"))):
            box.do(box.machine.input_asked(an_input(f"r{n}", cwd=cwd)))
            box.end(box.started()[-1], status)
        old, newest = box.log[:4], box.log[4:]
        carrying = newest[-1][:-1] + b',"x":{"carried":[%s,%s]}}' % (old[0], old[-1])
        ledger = Ledger()
        for line in (*newest[:-1], carrying):
            ledger.line_read(line)
        self.assertEqual((ledger.cwd, ledger.interrupted), ("/new", False))
        claim = ledger.claim("r0")
        assert claim is not None
        self.assertEqual((claim.accepted, claim.done), (1, 4))
        self.assertEqual(ledger.unfinished, {})

    def test_a_claim_that_was_carried_beyond_its_end_is_finished_I38(self) -> None:
        """Retention may put an `accepted` into a line behind the `done` of its run: that
        run is not ended once more."""
        box = Mailbox()
        for request in ("r0", "r1"):
            box.input(request)
            box.end(box.started()[-1])
        end, newest = box.log[3], box.log[4:]
        carrying = newest[-1][:-1] + b',"x":{"carried":[%s]}}' % box.log[0]
        ledger = Ledger()
        for line in (end, *newest[:-1], carrying):
            ledger.line_read(line)
        claim = ledger.claim("r0")
        assert claim is not None
        self.assertEqual((claim.accepted, claim.done), (1, 4))
        self.assertEqual(ledger.unfinished, {})
