"""`cortextx agent buffer …` without an agent, and what it asks of one that runs (A37, A61)."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from typing import Any

from click.testing import CliRunner, Result
from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.cli.faults import Fault
from cortextx.app.cli.main import cli
from cortextx.fleet.agent.buffer import Buffer
from cortextx.fleet.agent.buffer_view import segments
from cortextx.fleet.agent.disk import RealDisk
from tests.fleet.test_link import BODY


class Offline(SynchronousTestCase):
    def setUp(self) -> None:
        # A socket's path must fit in it.
        self.state = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.state)
        self.path = os.path.join(self.state, "agent", "buffer")

    def filled(self) -> None:
        buffer = Buffer.open(RealDisk(self.path))
        buffer.adopt(0)
        buffer.append([BODY] * 5, {})
        buffer.sync()
        buffer.set_aside(2, "InvalidParams")
        buffer.close()

    def run_it(self, *words: str) -> Result:
        command = ["--state-dir", self.state, "agent", "buffer", *words]
        return CliRunner().invoke(cli, command)

    def answer(self, *words: str) -> Any:
        done = self.run_it(*words, "--json")
        self.assertEqual(done.exit_code, 0, done.output)
        return json.loads(done.stdout)

    def test_without_a_buffer(self) -> None:
        """It says where it looked."""
        done = self.run_it("inspect")
        assert isinstance(done.exception, Fault)
        self.assertIn(self.path, str(done.exception))

    def test_inspect_and_verify(self) -> None:
        """What the files say, without an agent; nothing is changed by it."""
        self.filled()
        before = sorted(os.listdir(self.path))
        self.assertEqual(self.answer("inspect")["durable_seq"], 5)
        self.assertTrue(self.answer("verify")["good"])
        self.assertIn("set_aside", self.run_it("inspect").output)
        self.assertEqual(sorted(os.listdir(self.path)), before)

    def test_a37_damage_fails_the_command(self) -> None:
        """`verify` ends with a fault where a block is not good."""
        self.filled()
        disk = RealDisk(self.path)
        segment = segments(disk)[0]
        file = disk.open(segment.name)
        file.write_at(segment.size - 20, [b"rot"])
        file.close()
        disk.close()
        done = self.run_it("verify")
        self.assertIsInstance(done.exception, Fault)

    def test_a37_acknowledge(self) -> None:
        """What was set apart is listed until it is acknowledged."""
        self.filled()
        [row] = self.answer("quarantine")["apart"]
        self.assertEqual((row["seq"], row["reason"]), (2, "InvalidParams"))
        self.assertEqual(len(self.answer("quarantine", "--acknowledge")["acknowledged"]), 1)
        self.assertEqual(self.answer("quarantine")["apart"], [])

    def test_a_buffer_in_use_is_left_alone(self) -> None:
        """An agent that runs without its socket has the lock."""
        self.filled()
        disk = RealDisk(self.path)
        self.addCleanup(disk.close)
        done = self.run_it("inspect")
        self.assertIn("in use", str(done.exception))
