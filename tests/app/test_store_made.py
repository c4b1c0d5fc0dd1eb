"""A store that is gone is missed, and one that was never there is not."""

from __future__ import annotations

import os

from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.store_made import MARK, Made, about_to_open, forget, opened, warning
from cortextx.errors import ConfigError

NOW = 1_800_000_000_000_000


class StoreMade(SynchronousTestCase):
    def setUp(self) -> None:
        self.directory = self.mktemp()
        os.mkdir(self.directory)
        self.path = os.path.join(self.directory, "store.db")

    def write(self, name: str, content: bytes = b"x") -> None:
        with open(os.path.join(self.directory, name), "wb") as file:
            file.write(content)

    def start(self, now: int = NOW) -> Made:
        made = about_to_open(self.path, now)
        if not os.path.exists(self.path):
            self.write("store.db")
        opened(self.path, made)
        return made

    def test_the_first_one(self) -> None:
        """A first start is nothing to warn of, nor is the next one, nor a CA that was made
        before."""
        os.mkdir(os.path.join(self.directory, "tls"))
        self.assertEqual(self.start(), Made(NOW))
        self.assertEqual(self.start(NOW + 1), Made(NOW))
        self.assertIsNone(warning(Made(NOW), "then"))

    def test_a_first_start_that_failed(self) -> None:
        """Where making the store failed, with an empty file left or none, none was lost."""
        about_to_open(self.path, NOW)
        self.write("store.db", b"")
        self.assertEqual(self.start(NOW + 1), Made(NOW + 1))

    def test_one_that_is_gone(self) -> None:
        """A store that was removed, or emptied, is told of at every start from then on."""
        self.start()
        for number, lose in enumerate((os.unlink, lambda path: os.truncate(path, 0)), 1):
            lose(self.path)
            made = Made(NOW + number, instead=True)
            self.assertEqual(self.start(NOW + number), made)
            self.write("store.db")
            self.assertEqual(self.start(NOW + 9), made)
        self.assertIn("then", warning(made, "then") or "")

    def test_one_from_before_this_was_noted(self) -> None:
        """A store without a mark is one that was there; it is missed from then on too."""
        self.write("store.db")
        self.assertEqual(self.start(), Made(None))
        os.unlink(self.path)
        self.assertTrue(self.start().instead)

    def test_a_log_without_its_database(self) -> None:
        """It shows that there was one, and is kept under another name."""
        self.write("store.db-wal", b"log")
        self.assertTrue(self.start().instead)
        with open(f"{self.path}-wal.aside-{NOW // 1_000_000}", "rb") as file:
            self.assertEqual(file.read(), b"log")

    def test_a_restored_one(self) -> None:
        """Putting a database there on purpose ends the warning."""
        self.start()
        os.unlink(self.path)
        self.start()
        forget(self.path)
        self.assertFalse(self.start().instead)
        forget(os.path.join(self.directory, "elsewhere", "store.db"))

    def test_a_mark_that_says_nothing(self) -> None:
        """Whatever is in the file, it shows that there was a store."""
        for content in (b"", b"{", b"[1]", b"\xff"):
            self.write(MARK, content)
            self.assertTrue(about_to_open(self.path, NOW).instead, content)

    def test_a_directory_that_cannot_be_written(self) -> None:
        """That is a ConfigError."""
        with self.assertRaises(ConfigError):
            opened(os.path.join(self.directory, "none", "store.db"), Made(NOW))
