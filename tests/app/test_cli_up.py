"""What `cortextx up` remembers, and whose server it thinks an enrolment names."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.cli.enroll import identity_files
from cortextx.app.cli.remembered import (
    Remembered,
    configured_listen,
    recall,
    remember,
    server_belongs_here,
)
from cortextx.app.statedir import StateDir

TOKEN = "t" * 43
LOCAL = "ws://127.0.0.1:8600/ws/agent"
OTHER = "wss://logs.example/ws/agent"


class Remembering(SynchronousTestCase):
    """DIR/run/up.json"""

    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        StateDir(self.folder).prepare("agent", "server")

    def test_kept(self) -> None:
        """What is remembered comes back; damage is nothing, not an error."""
        note = Remembered("tcp:0", (LOCAL,), LOCAL)
        remember(self.folder, note)
        self.assertEqual(recall(self.folder), note)
        path = Path(self.folder, "run", "up.json")
        self.assertEqual(path.stat().st_mode & 0o777, 0o600)
        for text in (b"", b"{", b"[]", b'{"listen":7}', b"\xff"):
            path.write_bytes(text)
            self.assertEqual(recall(self.folder), Remembered())

    def test_configuration_goes_before_memory(self) -> None:
        """Where file or environment say where to listen, what was remembered has no say."""
        self.assertFalse(configured_listen(self.folder, {}))
        self.assertTrue(configured_listen(self.folder, {"CORTEXTX_SERVER_LISTEN": "tcp:1"}))
        file = Path(self.folder, "cortex-server.toml")
        for text, said in (
            ('[server]\nlisten = ["tcp:1"]\n', True),
            ("[server]\nallow_insecure = true\n", False),
            ("server = 7\n", False),
            ("=", False),
        ):
            file.write_text(text)
            self.assertEqual(configured_listen(self.folder, {}), said, text)

    def enrol(self, url: str) -> None:
        identity_files(self.folder).enrol(url, TOKEN)

    def test_whose_server(self) -> None:
        """An enrolment for a server that is not known as ours means: start none here."""
        self.assertTrue(server_belongs_here(self.folder, Remembered()))
        self.enrol(OTHER)
        self.assertFalse(server_belongs_here(self.folder, Remembered()))
        self.assertTrue(server_belongs_here(self.folder, Remembered(urls=(LOCAL, OTHER))))
        self.assertTrue(server_belongs_here(self.folder, Remembered(enrolled=OTHER)))

    def test_a_url_of_this_machine(self) -> None:
        """Loopback is our own server if one ever ran here; else it is a tunnel's end."""
        self.enrol(LOCAL)
        self.assertFalse(server_belongs_here(self.folder, Remembered()))
        Path(self.folder, "server", "store.db").touch()
        self.assertTrue(server_belongs_here(self.folder, Remembered()))

    def test_moving(self) -> None:
        """A server that moved changes the URL in the enrolment, and nothing else of it."""
        files = identity_files(self.folder)
        files.enrol(LOCAL, TOKEN, ca_pin="pin")
        before = files.load()
        files.move(OTHER)
        after = files.load()
        self.assertEqual((after.host_id, after.token), (before.host_id, before.token))
        assert after.enrolment is not None
        self.assertEqual((after.enrolment.url, after.enrolment.ca_pin), (OTHER, "pin"))
        self.assertEqual(os.stat(files.path("enrolment.json")).st_mode & 0o777, 0o600)
