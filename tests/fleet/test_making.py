"""Sources made from what is to run: by kind, with its own settings, and nobody else's code."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase
from zope.interface.verify import verifyObject

from cortextx.fleet.agent import making
from cortextx.fleet.agent.composing import Composer
from cortextx.fleet.agent.making import MAKERS, Parts, make_source
from cortextx.fleet.agent.policy import AVAILABLE, EffectiveSource, groups
from cortextx.fleet.agent.rules import compile_rules
from cortextx.fleet.agent.sources.report import SourceReport
from cortextx.fleet.agent.tables import MultilineTable, RuleMatch, RuleTable, SourceTable
from cortextx.interfaces.fleet import ILogSource

TABLES = (
    SourceTable(kind="file", path="/srv/a.log"),
    SourceTable(
        kind="file",
        path="/srv/b.log",
        multiline=MultilineTable(continue_=r"^\s"),
        encoding="utf-16le",
        timezone="+02:00",
        partial_secs=0,
    ),
    SourceTable(kind="journald", units=("a.service",), since="2h"),
    SourceTable(kind="docker", include=("web-*",), start="end"),
    SourceTable(kind="custom", name="u", type="syslog-udp", listen="127.0.0.1:5514"),
    SourceTable(kind="custom", name="x", type="syslog-unix", listen="/run/x"),
    SourceTable(kind="custom", name="e", type="exec", command=("/bin/true",)),
    SourceTable(kind="custom", name="s", type="stdin"),
)


def put(*details: Any, **more: Any) -> Deferred[int]:
    return succeed(1)


class Making(SynchronousTestCase):
    def test_every_kind(self) -> None:
        """Each table becomes a source that can tell how it is, by the group's name; it is a
        log source in every respect."""
        run = [EffectiveSource(one.kind, one.title, one, "local") for one in TABLES]
        for group in groups(run, ()):
            source: Any = make_source(group, Parts(Clock(), put, {}, "/var/lib/x"))
            self.assertTrue(verifyObject(ILogSource, source))
            report = source.report()
            self.assertIsInstance(report, SourceReport)
            self.assertEqual((report.name, report.kind), (group.name, group.kind))

    def test_the_rules_are_the_sources(self) -> None:
        """A source writes its entries through the rules of its own kind and name."""
        rules = compile_rules([RuleTable(action="drop", match=RuleMatch(source="custom:u"))], "")
        asked: list[tuple[str, str]] = []

        def compose_for(kind: str, name: str) -> Any:
            asked.append((kind, name))
            return Composer(rules, kind, name).compose

        run = [EffectiveSource("custom", "u", TABLES[4], "local")]
        [group] = groups(run, ())
        make_source(group, Parts(Clock(), put, {}, "/var/lib/x", compose_for))
        self.assertEqual(asked, [("custom", "u")])

    def test_all_kinds_have_a_maker(self) -> None:
        self.assertEqual(set(MAKERS), AVAILABLE)

    def test_what_a_host_lacks(self) -> None:
        """Without the program there is no journal, without the socket no Docker to offer."""
        self.patch(making, "JOURNALCTL", "no-such-program")
        self.patch(making, "DOCKER_SOCKET", "/no/such/socket")
        self.assertEqual(list(making.lacking()), ["journald"])
        self.assertEqual(making.able(), ["file", "custom"])
        self.assertEqual(making.able([__file__]), ["file", "docker", "custom"])

    def test_files_alone_load_nothing_else(self) -> None:
        """An agent that reads files has no code of Docker, syslog, journals or patterns in
        memory, nor what they need."""
        script = (
            "import sys\n"
            "from cortextx.app import agent_tap\n"
            "from cortextx.fleet.agent import service, buffer_writer\n"
            "from cortextx.fleet.agent.making import Parts, make_source\n"
            "from cortextx.fleet.agent.policy import EffectiveSource, groups\n"
            "from cortextx.fleet.agent.probes import registry\n"
            "from cortextx.fleet.agent.tables import SourceTable\n"
            "from twisted.internet.task import Clock\n"
            "run = [EffectiveSource('file', 'a', SourceTable(kind='file', path='/a'), 'local')]\n"
            "for group in groups(run, ()): make_source(group, Parts(Clock(), None, {}, '/x'))\n"
            "heavy = ('treq', 're2', 'psutil', 'requests', 'docker', 'rich', 'sqlite3')\n"
            "ours = ('syslog_listeners', 'exec', 'journal_source', 'docker_source')\n"
            "ours = tuple('cortextx.fleet.agent.sources.' + one for one in ours)\n"
            "print([one for one in (*heavy, *ours) if one in sys.modules])\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
        )
        self.assertEqual((done.stdout, done.stderr), ("[]\n", ""))
