"""What `--check` sees of whether sources could run here."""

from __future__ import annotations

import os
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import ConfigError
from cortextx.fleet.agent.runnable import check_runnable
from cortextx.fleet.agent.settings import AgentSettings, check
from cortextx.fleet.agent.tables import SourceTable


def source(**members: Any) -> AgentSettings:
    table = SourceTable(**{"kind": "custom", "name": "mine", **members})
    return AgentSettings(sources=(SourceTable(kind="file", path="/none/*"), table))


def command(*words: str, **members: Any) -> AgentSettings:
    return source(type="exec", command=words, **members)


def listener(certificate: str, key: str, **members: Any) -> AgentSettings:
    return source(
        type="syslog-tls", listen="127.0.0.1:6514", certificate=certificate, key=key, **members
    )


class Runnable(SynchronousTestCase):
    def test_what_is_missing_is_named(self) -> None:
        """Each fault names the member and the source; what waits for files is none."""
        text = self.mktemp()
        with open(text, "w") as file:
            file.write("no certificate")
        text = os.path.abspath(text)
        for settings, member in (
            (command("/no/such/program"), "command"),
            (command(text), "command"),
            (command("/"), "command"),
            (command("/bin/sh", directory="/no/such"), "directory"),
            (command("/bin/sh", user="no-such-user"), "user"),
            (source(kind="journald", directory="/no/such"), "directory"),
            (source(type="syslog-unix", listen="/no/such/socket"), "listen"),
            (listener("/no/such", text), "certificate"),
            (listener(text, "/no/such"), "key"),
            (listener(text, text, client_ca="/no/such"), "client_ca"),
            (listener(text, text), "certificate"),
        ):
            check(settings, "x.toml")
            error = self.assertRaises(ConfigError, check_runnable, settings, "x.toml")
            self.assertEqual(error.field, f"sources[1].{member}")
            self.assertIn("(mine)", error.expected)

    def test_what_can_run(self) -> None:
        check_runnable(command("/bin/sh", "-c", "true", directory="/"), "x.toml")
        check_runnable(source(kind="docker", socket="/no/such"), "x.toml")
