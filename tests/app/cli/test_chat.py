"""Where `cortextx chat` finds its slave and agent, and whom it trusts."""

from __future__ import annotations

import os

from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.cli.chat import default_agent, slave_socket, start_with, trusted
from cortextx.app.cli.faults import USAGE
from tests.app.scripted import Scripted


class FindingTests(SynchronousTestCase):
    def config(self, text: str) -> str:
        path = self.mktemp()
        with open(path, "w") as file:
            file.write(text)
        return path

    def test_the_agent_is_that_of_the_configuration(self) -> None:
        # I24
        table = '[agents.%s]\nruntime = "echo"\n'
        for text, agent in (
            ("", "echo"),
            ("no toml", "echo"),
            (table % "b" + table % "a", "b"),
            (table % "b" + table % "echo", "echo"),
            ('[slave]\ndefault_agent = "a"\n' + table % "b" + table % "a", "a"),
            ("agents = 1\nslave = 2\n", "echo"),
        ):
            self.assertEqual(default_agent(self.config(text)), agent, text)
        self.assertEqual(default_agent(self.mktemp()), "echo")

    def test_the_socket_is_where_the_slave_says_or_usually_is(self) -> None:
        directory = self.mktemp()
        os.makedirs(os.path.join(directory, "run"))
        usual = os.path.join(directory, "run", "slave.sock")
        self.assertEqual(slave_socket(directory), usual)
        with open(os.path.join(directory, "run", "cortex-slave.address"), "w") as file:
            file.write("/elsewhere/x.sock\n")
        self.assertEqual(slave_socket(directory), "/elsewhere/x.sock")

    def test_a_slave_of_another_user_must_be_named(self) -> None:
        # v2, peer authorization: both ends look at the other's UID.
        own = os.geteuid()
        directory = self.mktemp()
        os.makedirs(directory)
        self.assertEqual(trusted(directory, None), {0, own})
        self.assertEqual(trusted(directory, 77), {0, own, 77})
        if own == 0:
            os.chown(directory, 1000, 1000)
            self.assertEqual(trusted(directory, None), {0, 1000})

    def test_how_to_start_a_slave_can_be_typed(self) -> None:
        text = start_with("/tmp/with space")
        self.assertEqual(text, "twistd -n cortex-slave --state-dir '/tmp/with space'")

    def test_names_and_options_that_cannot_be_are_wrong_usage(self) -> None:
        call = Scripted()
        for args in (
            ("a/b",),
            ("--session", "index"),
            ("--space", ".."),
            ("--space", "s", "--temp"),
        ):
            done = call("chat", *args)
            self.assertEqual((args, done.code), (args, USAGE))
