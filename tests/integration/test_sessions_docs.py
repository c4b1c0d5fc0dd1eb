"""What docs/sessions.md shows at a prompt works as printed."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from twisted.trial.unittest import TestCase

import tests
from tests.integration.chats import CORTEXTX, Slave

DOCUMENT = Path(tests.__file__).parent.parent / "docs" / "sessions.md"
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


class DocumentTests(TestCase):
    timeout = 120

    def test_commands_print_what_is_shown(self) -> None:
        slave = Slave(self, config="[slave]\nidle_seconds = 0.2\n").start()
        program = slave.root / "cortextx"
        program.write_text(f'#!/bin/sh\nexec {" ".join(CORTEXTX)} "$@"\n')
        program.chmod(0o700)
        env = {
            **os.environ,
            **slave.env,
            "PATH": f"{slave.root}:{os.environ['PATH']}",
            "CORTEXTX_STATE_DIR": str(slave.state),
        }
        shown = [
            found
            for block in _BLOCK.findall(DOCUMENT.read_text())
            for found in _COMMAND.findall(block)
        ]
        self.assertGreater(len(shown), 7)
        for command, expected in shown:
            done = subprocess.run(
                ["sh", "-c", command], capture_output=True, text=True, env=env, timeout=30,
                check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            pattern = "(?s:.*)".join(map(re.escape, expected.split("…")))
            self.assertEqual((command, done.returncode, done.stderr), (command, 0, ""))
            self.assertRegex(done.stdout, rf"\A{pattern}\Z", command)
