"""A file that another source takes over goes on where it was (A59)."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from twisted.trial.unittest import SynchronousTestCase

from cortextx.fleet.agent.sources.identity import Checkpoint, decode_checkpoint
from cortextx.fleet.agent.sources.inheriting import inherited

ONE = Checkpoint(
    home="/srv/a.log", path="/srv/a.log", dev=1, ino=2, offset=7, part=0, head_size=0,
    head_hash="", before_size=0, before_hash="", size=9, mtime_ns=0,
)  # fmt: skip


class Inheriting(SynchronousTestCase):
    def seen(self, kept: dict[str, bytes], name: str = "files-of-app") -> dict[str, int]:
        found = inherited(kept, name, lambda path: path.startswith("/srv/"))
        own = f"file:{name}:"
        return {
            key.removeprefix(own): decode_checkpoint(data).offset
            for key, data in found.items()
            if key.startswith(own)
        }

    def test_a59_another_source_goes_on_from_the_checkpoint(self) -> None:
        """Of its own files only, and the others' checkpoints stay what they are."""
        kept = {
            "file:files:1:2": ONE.encode(),
            "file:files:1:3": replace(ONE, home="/var/b", ino=3).encode(),
            "file:files:started": b"1",
            "journald:x": b"2",
            "file:files:1:4": b"broken",
        }
        self.assertEqual(self.seen(kept), {"1:2": 7})
        self.assertLessEqual(kept.items(), inherited(kept, "files-of-app", bool).items())

    def test_a59_the_one_that_is_further_counts(self) -> None:
        """When the file comes back to a source that had it before, nothing is read twice."""
        kept = {
            "file:files:1:2": replace(ONE, offset=5).encode(),
            "file:files-of-app:1:2": replace(ONE, offset=9).encode(),
        }
        self.assertEqual(self.seen(kept, "files"), {"1:2": 9})
        self.assertEqual(self.seen(kept, "files-of-app"), {"1:2": 9})


class Forms(SynchronousTestCase):
    """How a checkpoint is kept: short, and in the form of before too."""

    def test_both_forms_say_the_same(self) -> None:
        whole = replace(
            ONE, path="/srv/a.log.1", part=3, head_size=5, head_hash="ab", before_size=6,
            before_hash="cd", mtime_ns=5, finished=1, coding="utf-16le", replaces=9,
        )  # fmt: skip
        for one in (ONE, whole, replace(whole, before_hash="ab", coding="utf-8", replaces=0)):
            members = {name: getattr(one, name) for name in one.__slots__}
            self.assertEqual(decode_checkpoint(msgspec.json.encode({"v": 1, **members})), one)
            self.assertEqual(decode_checkpoint(one.encode()), one)
        self.assertLess(len(ONE.encode()), 40)

    def test_what_is_none_is_refused(self) -> None:
        for data in (b"", b"[]", b"[3]", b"[2,0]", b'[2,"/a",0,"x",1]', b'{"v":2}', b"{}", b"0"):
            self.assertRaises(ValueError, decode_checkpoint, data)
