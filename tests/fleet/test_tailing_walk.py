"""Early test 5 of the design: what writers, rotators and hosts do to files, in any order.

The model is the text that was written to each file. At any time what was delivered of a
file is the beginning of that text, cut only at line ends (A19); in the end it is all of it,
but for what a truncation took away unread, which is a gap (A08).
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from twisted.trial.unittest import SynchronousTestCase

from cortextx.fleet.agent.sources.codings import CODINGS, Coding
from cortextx.fleet.agent.sources.multiline import Multiline
from cortextx.fleet.agent.sources.rotation import TailSettings
from tests.fleet.fake_files import FakeAgent, FakeFiles, Inode

HEADER = "start: the same header in every file, longer than any sample " * 20
HOMES = {"/log/a.log": "utf-8", "/log/b.log": "utf-16le", "/log/c.log": "utf-16be"}
COPIED = "/log/c.log"
"""Its rotation leaves copies, and never renames."""
RULE = Multiline(start=r"^start", max_lines=4, max_bytes=4096, timeout=3.0)


class Story:
    """What was written to one file: a text for each time that it was emptied."""

    def __init__(self, inode: Inode, coding: Coding) -> None:
        self.inode = inode
        self.coding = coding
        self.ended: list[str] = []
        self.taken = 0
        """Bytes that were emptied away."""
        self.due = 0
        """Characters that come before the next file's first."""
        self.alone = True
        """Whether no older file of its home is unfinished business of the same bytes."""

    @property
    def text(self) -> str:
        return self.coding.text(bytes(self.inode.data)).removeprefix("\ufeff")

    @property
    def delivered(self) -> list[str]:
        return [self.coding.text(record) for record in self.inode.delivered]

    def told(self) -> list[str]:
        """The beginnings of the texts that were delivered; fails if it is not that."""
        texts = [*self.ended, self.text]
        told = ["" for _ in texts]
        at = 0
        fresh = True
        for record in self.delivered:
            record = record.removeprefix("\ufeff")
            while not texts[at].startswith(longer := record if fresh else f"{told[at]}\n{record}"):
                at += 1
                fresh = True
                assert at < len(texts), (record, texts, self.delivered)
            told[at] = longer
            fresh = False
        return told


class Walk(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.files = FakeFiles()
        self.stories: dict[str, list[Story]] = {}
        self.gaps = 0
        self.replaced = 0
        """Bytes of replaced files, which may be told as lost: who knows what was in them."""
        self.count = 0
        self.restarts = 0

    @initialize(multiline=st.booleans(), partial=st.sampled_from([0.0, 4.0, 8.0]))
    def begin(self, multiline: bool, partial: float) -> None:
        self.multiline = multiline
        tail = TailSettings(
            rotate_wait=5.0,
            read_bytes=2048,
            max_records=3,
            max_open=2,
            partial_after=partial,
            multiline=RULE if multiline else None,
        )
        self.agent = FakeAgent(self.files, settings=tail)
        for home in HOMES:
            self.create(home)
        self.agent.look()
        while self.agent.settle():
            pass

    # -- writers -----------------------------------------------------------------------

    homes = st.sampled_from(sorted(HOMES))

    def create(self, home: str, header: bool = False) -> Story:
        inode = self.files.create(home, fresh=True)
        story = Story(inode, CODINGS[HOMES[home]])
        self.stories.setdefault(home, []).append(story)
        if header:
            self.write(story, HEADER + "\n")
        return story

    def write(self, story: Story, text: str) -> None:
        bom = "" if story.inode.data or story.coding.name == "utf-8" else "\ufeff"
        self.files.write(story.inode, story.coding.data(bom + text))

    def line(self, fill: int = 0) -> str:
        self.count += 1
        first = "  at" if self.multiline and self.count % 3 else "start"
        return f"{first} {self.count}é{'x' * fill} {self.count}"

    def at_home(self, home: str) -> Story:
        """The file there, made anew where the last rotation left none."""
        return self.create(home) if home not in self.files.names else self.stories[home][-1]

    @rule(home=homes, lines=st.integers(1, 5), ends=st.booleans())
    def append(self, home: str, lines: int, ends: bool) -> None:
        text = "\n".join(self.line() for _ in range(lines)) + ("\n" if ends else "")
        self.write(self.at_home(home), text)

    @rule(home=homes, fill=st.integers(1, 3000))
    def append_much(self, home: str, fill: int) -> None:
        self.write(self.at_home(home), self.line(fill) + "\n")

    @rule(home=homes)
    def append_half_a_character(self, home: str) -> None:
        """A writer was cut off between two bytes; the rest comes at once or much later."""
        inode = self.at_home(home).inode
        if inode.data:
            data = CODINGS[HOMES[home]].data("é")
            self.files.write(inode, data[:1])
            self.agent.look()
            self.agent.step()
            self.files.write(inode, data[1:])

    @rule(home=homes, back=st.integers(1, 2))
    def append_late(self, home: str, back: int) -> None:
        """A writer that still holds a rotated file writes to it (A05)."""
        stories = self.stories[home]
        if len(stories) > back and stories[-1 - back].inode in self.files.names.values():
            self.write(stories[-1 - back], self.line() + "\n")

    # -- rotators ----------------------------------------------------------------------

    def free(self, home: str) -> str:
        """Move the older ones up; answers the name that is free now."""
        names = self.files.names
        depth = 1
        while f"{home}.{depth}" in names:
            depth += 1
        for index in range(depth, 1, -1):
            self.files.rename(f"{home}.{index - 1}", f"{home}.{index}")
        return f"{home}.1"

    def end_line(self, story: Story) -> None:
        if story.text and not story.text.endswith("\n"):
            self.write(story, "\n")
        story.due = len(story.text)

    @rule(home=homes, header=st.booleans(), create=st.booleans())
    def rotate(self, home: str, header: bool, create: bool) -> None:
        """(A file that was truncated and then rotated, both unseen, is told as lost.)"""
        story = self.stories[home][-1]
        if home not in self.files.names or (story.ended and not story.told()[-1]):
            return
        if home == COPIED:
            return
        free = self.free(home)
        self.end_line(self.stories[home][-1])
        self.files.rename(home, free)
        if create:
            self.create(home, header)

    @rule(home=homes, lines=st.integers(0, 9), copy=st.booleans())
    def copytruncate(self, home: str, lines: int, copy: bool) -> None:
        """With what is written at once behind it, be it less or more than before (A07)."""
        story = self.stories[home][-1]
        if home not in self.files.names or not story.text:
            return
        if copy and home == COPIED and story.inode.known:
            self.files.create(self.free(home), bytes(story.inode.data), fresh=True)
        story.ended.append(story.text)
        story.taken += len(story.inode.data)
        story.due = 0
        self.files.truncate(story.inode)
        for _ in range(lines):
            self.write(story, self.line() + "\n")

    @rule(home=homes, lines=st.integers(0, 3))
    def put_in_place(self, home: str, lines: int) -> None:
        """An editor or a copier writes the whole file anew and puts it in its place (A20).
        (Its last line is whole: an unfinished one may come from both.)"""
        story = self.stories[home][-1]
        if home not in self.files.names or not story.inode.known or story.ended:
            return
        if home == COPIED or not story.text.endswith("\n"):
            return
        self.replaced += len(story.inode.data)
        inode = self.files.replace(home, bytes(story.inode.data))
        inode.delivered, inode.known = story.inode.delivered, True
        story.inode = inode
        for _ in range(lines):
            self.write(story, self.line() + "\n")

    @rule(home=homes)
    def compress_oldest(self, home: str) -> None:
        """What was delivered whole is compressed (A16). (Not the last one that is known of
        a home: a file that comes and goes between two looks is found only beside one.)"""
        if home not in self.files.names:
            return
        for path in sorted((p for p in self.files.names if p.startswith(home)), reverse=True):
            inode = self.files.names[path]
            story = next((s for s in self.stories[home] if s.inode is inode), None)
            if path == home or path.endswith(".gz") or story is None:
                continue
            if story.told()[-1] + "\n" == story.text and story.text != HEADER + "\n":
                self.files.create(f"{path}.{self.count}.gz", b"\x1f\x8b\nnot a line\n", fresh=True)
                self.files.unlink(path)
                return

    # -- the agent ---------------------------------------------------------------------

    @rule()
    def look(self) -> None:
        self.agent.look()
        for stories in self.stories.values():
            stories[-1].inode.known = True

    @rule(steps=st.integers(1, 8))
    def work(self, steps: int) -> None:
        for _ in range(steps):
            self.agent.step()

    @rule(puts=st.integers(1, 4))
    def settle(self, puts: int) -> None:
        for _ in range(puts):
            self.agent.settle()

    @rule(seconds=st.sampled_from([1.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.agent.now += seconds

    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        old = self.agent
        self.agent = old.stop(crash)
        self.gaps += sum(gap.unread or 0 for gap in old.gaps)
        self.restarts += 1

    @precondition(lambda self: self.agent.puts)
    @rule()
    def lose_a_put(self) -> None:
        """The buffer refuses what is under way: all of it, as it keeps the order."""
        for inode, action in self.agent.puts:
            if inode is not None:
                self.agent.take(self.agent.tailer.put_failed(action.handle, self.agent.now))
        self.agent.puts = [put for put in self.agent.puts if put[0] is None]

    # -- what holds --------------------------------------------------------------------

    @invariant()
    def what_came_is_what_was_written(self) -> None:
        for stories in self.stories.values():
            waiting = False
            for story in stories:
                told = story.told()[-1]
                assert not (waiting and story.inode.delivered), "a new file before the old one"
                waiting = waiting or len(told) + 1 < story.due

    @invariant()
    def nothing_else_is_read(self) -> None:
        """No copy that a truncation left, and no compressed file."""
        known = {id(story.inode.delivered) for some in self.stories.values() for story in some}
        assert all(id(i.delivered) in known for i in self.files.made if i.delivered)

    @invariant()
    def handles_are_bounded(self) -> None:
        if hasattr(self, "agent"):
            assert self.agent.tailer.open_files <= 2 + len(self.agent.puts) + 3

    def teardown(self) -> None:
        for home, stories in self.stories.items():
            if home in self.files.names:
                self.end_line(stories[-1])
        self.agent.now += 20.0
        self.agent.run(20)
        lost = 0
        for stories in self.stories.values():
            for story in stories:
                told = story.told()
                whole = told[-1] + "\n" if story.text else told[-1]
                assert whole == story.text, (story.delivered, story.text)
                for text, part in zip(story.ended, told[:-1], strict=True):
                    lost += len(story.coding.data(text)) - len(story.coding.data(part))
        gaps = self.gaps + sum(gap.unread or 0 for gap in self.agent.gaps)
        assert gaps <= lost + self.replaced + 2 * len(self.stories), (gaps, lost)
        assert not [say for say in self.agent.said if say.level == "warn"], self.agent.said


class WalkTests(SynchronousTestCase):
    def test_every_line_comes_once_whole_and_in_order(self) -> None:
        """A01–A20: three codings, with and without records of several lines: writers,
        rotators, truncations, replacements, stops, crashes and refused puts."""
        run_state_machine_as_test(
            Walk, settings=settings(max_examples=80, stateful_step_count=40, deadline=None)
        )
