"""What an agent keeps of its enrolment: whole or not at all, private, bound to its machine."""

from __future__ import annotations

import errno
import os
import stat
import uuid

from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import ConfigError
from cortextx.fleet.agent.identity import Enrolment, IdentityFiles

URL = "ws://127.0.0.1:8600/ws/agent"
TOKEN = "t" * 43
FRESH = "f" * 43
THIRD = "x" * 43


class Full(IdentityFiles):
    """Files on a disk where nothing new finds room once `full`; what is there can be written."""

    full = False

    def _create(self, path: str, data: bytes) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "no space")
        super()._create(path, data)


class Stopping(IdentityFiles):
    """Files of a process that dies before its step number `left`."""

    left = 1000

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def _create(self, path: str, data: bytes) -> None:
        self._step()
        super()._create(path, data)

    def _sync_directory(self) -> None:
        self._step()
        super()._sync_directory()

    def _rename(self, old: str, new: str) -> None:
        self._step()
        super()._rename(old, new)


class Identities(SynchronousTestCase):
    def setUp(self) -> None:
        self.root = self.mktemp()
        os.mkdir(self.root)
        self.machine = os.path.join(self.root, "machine-id")
        self.be_machine("a" * 32)
        self.files = IdentityFiles(os.path.join(self.root, "agent"), self.machine)

    def be_machine(self, id: str) -> None:
        with open(self.machine, "w") as file:
            file.write(id + "\n")

    def write(self, name: str, text: str) -> None:
        with open(self.files.path(name), "w") as file:
            file.write(text)

    def test_what_is_enrolled_is_loaded(self) -> None:
        """Token, host id and server come back as they were stored, privately (0600)."""
        host_id = self.files.enrol(URL, TOKEN)
        uuid.UUID(host_id)
        found = self.files.load()
        self.assertEqual((found.host_id, found.token), (host_id, TOKEN))
        self.assertEqual(found.enrolment, Enrolment(URL))
        for name in ("token", "host_id", "enrolment.json", "machine_id"):
            self.assertEqual(stat.S_IMODE(os.stat(self.files.path(name)).st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(os.stat(self.files.directory).st_mode), 0o700)

    def test_no_token_is_shown(self) -> None:
        """Neither a repr nor an error holds a token, be it right or malformed (F23)."""
        self.files.enrol(URL, TOKEN)
        self.assertNotIn(TOKEN, repr(self.files.load()))
        self.write("token", "short-secret")
        error = self.assertRaises(ConfigError, self.files.load)
        self.assertNotIn("short-secret", str(error))

    def test_what_is_missing_is_named(self) -> None:
        """An absent file is named, with what to do about it."""
        for name in ("token", "host_id"):
            self.files.enrol(URL, TOKEN)
            os.unlink(self.files.path(name))
            error = self.assertRaises(ConfigError, self.files.load)
            self.assertIn(name, error.where)
            self.assertIn("agent enroll", str(error))

    def test_put_there_by_hand(self) -> None:
        """Token and host id in their files are enough; a lax mode is mended."""
        os.mkdir(self.files.directory)
        self.write("token", TOKEN + "\n")
        self.write("host_id", "2B9A0B3A-7E3C-4D2A-9C0E-9BBF5D3A1F01\n")
        os.chmod(self.files.path("token"), 0o644)
        found = self.files.load()
        self.assertEqual(found.host_id, "2b9a0b3a-7e3c-4d2a-9c0e-9bbf5d3a1f01")
        self.assertIsNone(found.enrolment)
        self.assertEqual(stat.S_IMODE(os.stat(self.files.path("token")).st_mode), 0o600)

    def test_a55_another_machine_is_refused(self) -> None:
        """A state that was copied to another machine does not start (F14, A55)."""
        self.files.enrol(URL, TOKEN)
        self.files.bind()
        self.be_machine("b" * 32)
        error = self.assertRaises(ConfigError, self.files.bind)
        self.assertIn("enroll", str(error))
        self.files.enrol(URL, FRESH)
        self.files.bind()

    def test_no_machine_id_binds_nothing(self) -> None:
        """Where a machine has no id there is nothing to compare; later there may be (F14)."""
        os.unlink(self.machine)
        self.files.enrol(URL, TOKEN)
        self.files.bind()
        self.be_machine("c" * 32)
        self.files.bind()
        self.be_machine("d" * 32)
        self.assertRaises(ConfigError, self.files.bind)

    def test_a_token_is_replaced_whole_and_deleted(self) -> None:
        """A rotation leaves the old token or the new one, and nothing beside it (§3.5)."""
        self.files.enrol(URL, TOKEN)
        self.write("token.new", "left by a crash")
        self.files.store_token(FRESH)
        self.assertEqual(self.files.load_token(), FRESH)
        self.assertNotIn("token.new", os.listdir(self.files.directory))
        self.files.delete_token()
        self.files.delete_token()
        self.assertRaises(ConfigError, self.files.load_token)

    def pair(self) -> tuple[str, str | None]:
        return self.files.load_token(), self.files.load_previous()

    def test_the_token_before_is_kept(self) -> None:
        """A rotation keeps what it replaces, privately; an enrolment begins anew (A56)."""
        self.files.enrol(URL, TOKEN)
        self.assertEqual((self.pair(), self.files.never_rotated), ((TOKEN, None), True))
        self.files.store_token(FRESH, TOKEN)
        self.assertEqual((self.pair(), self.files.never_rotated), ((FRESH, TOKEN), False))
        self.assertEqual(self.files.load().previous, TOKEN)
        self.assertNotIn(TOKEN, repr(self.files.load()))
        mode = os.stat(self.files.path("token.previous")).st_mode
        self.assertEqual(stat.S_IMODE(mode), 0o600)
        self.files.store_token(THIRD)
        self.assertEqual(self.pair(), (THIRD, FRESH))
        self.files.enrol(URL, TOKEN)
        self.assertEqual(self.pair(), (TOKEN, None))
        self.files.store_token(FRESH)
        self.files.delete_token()
        self.assertRaises(ConfigError, self.files.load_token)
        self.assertIsNone(self.files.load_previous())

    def test_tokens_change_places(self) -> None:
        """With the one before accepted the two are swapped, or only it is kept (A56)."""
        self.files.enrol(URL, TOKEN)
        self.files.store_token(FRESH)
        self.files.store_token(TOKEN, FRESH)
        self.assertEqual(self.pair(), (TOKEN, FRESH))
        self.files.store_token(THIRD, FRESH)
        self.assertEqual(self.pair(), (THIRD, FRESH))

    def test_a_crash_while_tokens_are_stored_loses_none(self) -> None:
        """Before each step of a rotation or a swap the token on the disk and the one before
        are the ones of before or of after, and the next change is right again."""
        for token, allowed in (
            (THIRD, {(FRESH, TOKEN), (FRESH, FRESH), (THIRD, FRESH)}),
            (TOKEN, {(FRESH, TOKEN), (TOKEN, FRESH)}),
        ):
            for left in range(12):
                self.files.enrol(URL, TOKEN)
                self.files.store_token(FRESH, TOKEN)
                dying = Stopping(self.files.directory)
                dying.left = left
                try:
                    dying.store_token(token, FRESH)
                except KeyboardInterrupt:
                    died = True
                else:
                    died = False
                self.assertIn(self.pair(), allowed)
                if not died:
                    self.assertEqual(self.pair(), (token, FRESH))
                now, before = self.pair()
                if before != now:
                    assert before is not None
                    self.files.store_token(before, now)
                    self.assertEqual(self.pair(), (before, now))
                    now = before
                self.files.store_token("n" * 43, now)
                self.assertEqual(self.pair(), ("n" * 43, now))
                self.assertNotIn("token.aside", os.listdir(self.files.directory))
            self.assertFalse(died)

    def test_a_full_disk_takes_a_token_all_the_same(self) -> None:
        """An enrolment keeps room for the next token and the one before; a rotation on a full
        disk spends it, and a later start makes it anew."""
        files = self.files = Full(self.files.directory, self.machine)
        files.enrol(URL, TOKEN)
        files.full = True
        files.reserve()
        files.store_token(FRESH, TOKEN)
        self.assertEqual(self.pair(), (FRESH, TOKEN))
        self.assertRaises(OSError, files.store_token, THIRD, FRESH)
        self.assertEqual(self.pair(), (FRESH, TOKEN))
        self.assertRaises(OSError, files.reserve)
        files.full = False
        files.reserve()
        files.full = True
        files.store_token(TOKEN, FRESH)
        self.assertEqual(self.pair(), (TOKEN, FRESH))
        for name in ("token", "token.previous"):
            self.assertEqual(stat.S_IMODE(os.stat(files.path(name)).st_mode), 0o600)
            self.assertEqual(os.stat(files.path(name)).st_size, 44)

    def test_no_enrolment_on_a_full_disk(self) -> None:
        """Without room for the answer to a one-time token it is better not spent."""
        files = Full(self.files.directory, self.machine)
        files.full = True
        error = self.assertRaises(ConfigError, files.enrol, URL, TOKEN)
        self.assertIn("no space", str(error))

    def test_a_bad_token_before_is_none(self) -> None:
        """It is no reason not to start."""
        self.files.enrol(URL, TOKEN)
        self.write("token.previous", "torn")
        self.assertIsNone(self.files.load().previous)

    def test_a_link_in_the_place_of_a_token_is_not_followed(self) -> None:
        """Somebody else's file is never read as ours."""
        self.files.enrol(URL, TOKEN)
        os.rename(self.files.path("token"), os.path.join(self.root, "elsewhere"))
        os.symlink(os.path.join(self.root, "elsewhere"), self.files.path("token"))
        self.assertRaises(ConfigError, self.files.load_token)
