"""The record of effects on disk."""

from __future__ import annotations

import os

from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.exchange import Accepted, Invoke, Rejected
from cortextx.errors import StoreError
from cortextx.interaction.master.effect_file import FileEffects
from cortextx.interaction.master.effects import attempted, ended

INVOKE = Invoke("send", Raw(b'{"to":"bob"}'))


class FileEffectsTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.path = self.mktemp()

    def reopened(self) -> FileEffects:
        """The record of the next life."""
        found = FileEffects(self.path)
        self.addCleanup(found.close)
        return found

    def states(self, found: FileEffects) -> list[str | None]:
        """Of the effects e1 to e3."""
        known = [found.find(f"e{n}") for n in (1, 2, 3)]
        return [None if each is None else each.state for each in known]

    def test_it_outlives_the_process(self) -> None:
        """B43: what was begun and not ended is unknown in the next life."""
        effects = FileEffects(self.path)
        effects.note(attempted("e1", INVOKE))
        effects.note(attempted("e2", INVOKE))
        effects.note(ended("e2", INVOKE, Accepted()))
        effects.note(ended("e3", INVOKE, Rejected("bounced")))
        self.assertEqual(self.states(effects), ["attempting", "confirmed", "failed"])
        effects.close()
        after = self.reopened()
        self.assertEqual(self.states(after), ["unknown", "confirmed", "failed"])
        found = after.find("e3")
        assert found is not None
        self.assertEqual(found.result, Rejected("bounced"))

    def test_a_cut_at_any_byte_loses_the_last_change_at_most(self) -> None:
        """A torn line never counted: it is cut, and the lines before it stand."""
        effects = FileEffects(self.path)
        effects.note(ended("e1", INVOKE, Accepted()))
        whole = os.path.getsize(self.path)
        effects.note(ended("e2", INVOKE, Accepted()))
        effects.close()
        with open(self.path, "rb") as file:
            content = file.read()
        for size in range(whole, len(content)):
            with open(self.path, "wb") as file:
                file.write(content[:size])
            after = FileEffects(self.path)
            self.assertEqual(self.states(after), ["confirmed", None, None])
            after.note(ended("e3", INVOKE, Accepted()))
            after.close()
            self.assertEqual(self.states(after := FileEffects(self.path))[2], "confirmed")
            after.close()

    def test_damage_in_the_middle_is_told(self) -> None:
        """Nothing is skipped without a word."""
        effects = FileEffects(self.path)
        effects.note(ended("e1", INVOKE, Accepted()))
        effects.close()
        with open(self.path, "ab") as file:
            file.write(b"nonsense\n")
        self.assertRaises(StoreError, FileEffects, self.path)

    def test_one_process_has_it(self) -> None:
        """Two masters on one record would each think the other's effects undone."""
        self.reopened()
        self.assertRaises(StoreError, FileEffects, self.path)

    def test_it_is_its_owners_alone(self) -> None:
        """Results may hold what the user wrote."""
        self.reopened()
        self.assertEqual(os.stat(self.path).st_mode & 0o777, 0o600)

    def test_a_long_file_is_written_anew(self) -> None:
        """The file is as long as what is known, not as what ever was."""
        import cortextx.interaction.master.effect_file as module

        self.patch(module, "REWRITE_BYTES", 1000)
        effects = FileEffects(self.path)
        for _ in range(20):
            effects.note(ended("e1", INVOKE, Accepted()))
        effects.close()
        before = os.path.getsize(self.path)
        after = self.reopened()
        self.assertLess(os.path.getsize(self.path), before // 10)
        after.note(ended("e2", INVOKE, Accepted()))
        after.close()
        self.assertEqual(self.states(again := FileEffects(self.path))[:2], ["confirmed"] * 2)
        again.close()
