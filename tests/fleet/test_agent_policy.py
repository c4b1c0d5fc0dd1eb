"""What an agent runs of what it is asked for (F18, F20, F41)."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import ConfigError
from cortextx.fleet.agent.policy import covers, groups, plan
from cortextx.fleet.agent.settings import (
    DEFAULT_ALLOW,
    AgentSettings,
    AgentTable,
    ServerTable,
    SourceTable,
    check,
)
from cortextx.fleet.agent.sources.globs import glob_test
from cortextx.fleet.agent.tables import MultilineTable, RuleTable
from cortextx.fleet.contract import DEFAULT_AGENT_CONFIG, LogSourceConfig


def of(**members: Any) -> AgentSettings:
    """Settings with one source."""
    return AgentSettings(sources=(SourceTable(**members),))


ASKED = DEFAULT_AGENT_CONFIG.log_sources


def _same(kind: str, table: SourceTable) -> bool:
    """Whether a local table reads the host's own journal or daemon."""
    return table.kind == kind and not (table.namespace or table.socket)


def file(path: str) -> LogSourceConfig:
    return LogSourceConfig(kind="file", path=path)


class Policy(SynchronousTestCase):
    def test_the_defaults(self) -> None:
        """Of the server's default list files run; the rest is named with a reason (F18)."""
        found = plan(ASKED, DEFAULT_ALLOW, ())
        self.assertEqual([s.name for s in found.run], ["journald", "/var/log/**/*.log"])
        [left] = found.left_out
        self.assertEqual(left.kind, "docker")
        self.assertIn("allow_sources", left.why)

    def test_what_a_host_lacks_does_not_run(self) -> None:
        """Without journalctl or the daemon's socket a source is left out, with the reason."""
        lacking = {"journald": "no journalctl", "docker": "no socket"}
        local = [SourceTable(kind="docker")]
        found = plan(ASKED, ("journald",), local, lacking)
        self.assertEqual(found.run, ())
        why = [(left.kind, left.origin, left.why) for left in found.left_out]
        self.assertIn(("docker", "local", "no socket"), why)
        self.assertIn(("journald", "server", "no journalctl"), why)

    def test_what_only_the_agent_declares(self) -> None:
        """A server starts no custom source (F18); one journal and one daemon are read once,
        as this host has declared it."""
        custom = LogSourceConfig(kind="custom", path="switches")
        asked = [custom, LogSourceConfig(kind="journald"), LogSourceConfig(kind="docker")]
        allow = ("journald", "docker", "custom:switches")
        self.assertEqual([left.kind for left in plan(asked, allow, ()).left_out], ["custom"])
        local = [
            SourceTable(kind="custom", name="switches", type="stdin"),
            SourceTable(kind="journald", name="web", units=("nginx.service",)),
        ]
        found = plan(asked, allow, local)
        names = [(source.name, source.origin) for source in found.run]
        self.assertEqual(names, [("switches", "local"), ("web", "local"), ("docker", "server")])
        [left] = found.left_out
        self.assertEqual((left.kind, left.origin), ("journald", "server"))
        self.assertIn("'web' of [[sources]] here", left.why)
        made = groups(found.run, allow)
        self.assertEqual([group.kind for group in made], ["custom", "journald", "docker"])
        self.assertEqual(made[1].table.units, ("nginx.service",))

    def test_a_local_source_stands_only_for_the_same(self) -> None:
        """One of another journal or daemon stands for nothing; one that reads as much or as
        asked does so silently; a name that is taken is told."""
        asked = [LogSourceConfig(kind="journald"), LogSourceConfig(kind="docker", filter="a-*")]
        allow = ("journald", "docker")
        for local, left in (
            ([SourceTable(kind="journald", since="7d"), SourceTable(kind="docker")], []),
            ([SourceTable(kind="docker", include=("a-*",))], []),
            ([SourceTable(kind="docker", exclude=("b",))], ["docker"]),
            ([SourceTable(kind="journald", name="x", namespace="x")], []),
            ([SourceTable(kind="journald", namespace="x")], ["journald"]),
            ([SourceTable(kind="docker", name="p", socket="/run/podman.sock")], []),
        ):
            found = plan(asked, allow, local)
            self.assertEqual([each.kind for each in found.left_out], left, local)
            self.assertEqual(len(found.run), len(local) + sum(
                not any(_same(kind, table) for table in local) and kind not in left
                for kind in allow
            ), local)  # fmt: skip

    def test_a_servers_filter(self) -> None:
        """A filter is a journal's match, or a glob on containers' names; elsewhere it is told
        that nothing is filtered."""
        asked = [
            LogSourceConfig(kind="journald", filter="_TRANSPORT=journal"),
            LogSourceConfig(kind="docker", filter="web-*"),
            LogSourceConfig(kind="file", path="/var/log/a.log", filter="x"),
        ]
        journal, docker, files = plan(asked, (*DEFAULT_ALLOW, "docker"), ()).run
        self.assertEqual(journal.table.matches, ("_TRANSPORT=journal",))
        self.assertEqual(docker.table.include, ("web-*",))
        self.assertIn("nothing is filtered", files.note or "")

    def test_the_local_policy_wins(self) -> None:
        """What is not allowed does not run, whoever asks; what is local always does (F18)."""
        local = SourceTable(kind="file", path="/srv/app/*.log", name="app", start="end")
        found = plan([file("/etc/shadow"), file("/srv/app/*.log")], (), [local])
        self.assertEqual([(s.name, s.origin) for s in found.run], [("app", "local")])
        self.assertEqual([left.name for left in found.left_out], ["/etc/shadow"])

    def test_covering(self) -> None:
        """An allowed glob covers what it matches whole, not what only looks like it."""
        for allowed, path, expected in (
            ("/var/log/**", "/var/log/**/*.log", True),
            ("/var/log/**", "/var/log/a/b", True),
            ("/var/log/*.log", "/var/log/*.log", True),
            ("/var/log/**/*.log", "/var/log/a.log", True),
            ("/var/log/**", "/var/logs/a", False),
            ("/var/log/**", "/var/log/../../etc/shadow", False),
            ("/var/log/*", "/var/log/**", False),
            ("/var/log/*/x", "/var/log/**/x", False),
            ("/var/log/a?", "/var/log/a*", False),
            ("/var/log/**", "var/log/a", False),
            ("/var/log/**", "/var/log", False),
            ("/**/**", "/a", True),
        ):
            self.assertEqual(covers(allowed, path), expected, (allowed, path))

    @given(
        st.lists(st.sampled_from(["a", "b", "*", "**", "a*", "?", ".."]), min_size=1, max_size=4),
        st.lists(st.sampled_from(["a", "b", "*", "**", "a*", "?"]), min_size=1, max_size=4),
        st.lists(st.sampled_from(["a", "b", "ab", "aa", "c"]), min_size=1, max_size=5),
    )
    def test_covering_is_sound(self, asked: list[str], allowed: list[str], path: list[str]) -> None:
        """A file that a covered glob matches is matched by the allowed glob too (F18)."""
        wanted, glob, name = ("/" + "/".join(parts) for parts in (asked, allowed, path))
        if covers(glob, wanted) and glob_test([wanted])(name):
            self.assertTrue(glob_test([glob])(name))

    def test_no_file_is_read_twice(self) -> None:
        """All globs with one start are one source, which reads a file once."""
        local = [SourceTable(kind="file", path=f"/srv/{name}/*") for name in "ab"]
        run = plan(ASKED, DEFAULT_ALLOW, local).run
        found = [group for group in groups(run, DEFAULT_ALLOW) if group.kind == "file"]
        self.assertEqual(len(found), 1)
        self.assertEqual(found[0].paths, ("/srv/a/*", "/srv/b/*", "/var/log/**/*.log"))
        self.assertEqual(found[0].allowed, ("/srv/a/*", "/srv/b/*", "/var/log/**"))

    def test_a_file_that_is_read_in_its_own_way_is_read_once(self) -> None:
        """A source that says how its files are read has them for itself; the others leave
        them out, and the groups' names do not change with the paths."""
        local = [
            SourceTable(kind="file", path="/var/log/app/*.log", name="app", encoding="latin-1"),
            SourceTable(kind="file", path="/var/log/new/*", start="end"),
        ]
        own, end, rest = groups(plan(ASKED, DEFAULT_ALLOW, local).run, ())[:3]
        self.assertEqual((own.name, own.paths, own.excluded), ("files-of-app", own.paths, ()))
        self.assertEqual((end.name, end.excluded), ("files-from-end", ("/var/log/app/*.log",)))
        excluded = ("/var/log/app/*.log", "/var/log/new/*")
        self.assertEqual((rest.name, rest.excluded), ("files", excluded))
        self.assertEqual(len({own, end, rest}), 3)


class Settings(SynchronousTestCase):
    def refused(self, settings: AgentSettings) -> str:
        return self.assertRaises(ConfigError, check, settings, "x.toml").field

    def test_tokens_do_not_travel_in_the_clear(self) -> None:
        """ws:// to another host needs allow_insecure (F20)."""
        for url, insecure, good in (
            ("ws://127.0.0.1:1/ws/agent", False, True),
            ("ws://[::1]:1/ws/agent", False, True),
            ("ws://localhost/ws/agent", False, True),
            ("wss://logs.example/ws/agent", False, True),
            ("ws://logs.example/ws/agent", True, True),
            ("ws://logs.example/ws/agent", False, False),
            ("ws://127.0.0.1.example/ws/agent", False, False),
        ):
            table = AgentTable(allow_insecure=insecure)
            settings = AgentSettings(server=ServerTable(url=url), agent=table)
            if good:
                check(settings, "x.toml")
            else:
                self.assertEqual(self.refused(settings), "server.url")

    def test_the_urls_form_is_the_urls_fault(self) -> None:
        """What is no URL is blamed on the same setting as one that is insecure."""
        for url in ("http://x", "ws://", "logs.example"):
            self.assertEqual(self.refused(AgentSettings(server=ServerTable(url=url))), "server.url")

    def test_a_source_with_a_name_is_named(self) -> None:
        settings = of(kind="custom", type="exec", name="vm", command=("ls",))
        error = self.assertRaises(ConfigError, check, settings, "x.toml")
        self.assertIn("(vm)", str(error))

    def test_sources_do_not_collide(self) -> None:
        """Two listeners on one address, and two readers of one input, are refused; other
        transports and ports are not."""

        def listener(type: Any, listen: str) -> SourceTable:
            return SourceTable(kind="custom", type=type, listen=listen, name=f"{type} {listen}")

        for one, other, good in (
            (listener("syslog-udp", "0.0.0.0:514"), listener("syslog-udp", "127.0.0.1:514"), False),
            (
                listener("syslog-udp", "127.0.0.1:514"),
                listener("syslog-tcp", "127.0.0.1:514"),
                True,
            ),
            (
                listener("syslog-udp", "127.0.0.1:514"),
                listener("syslog-udp", "127.0.0.1:515"),
                True,
            ),
            (
                listener("syslog-udp", "127.0.0.2:514"),
                listener("syslog-udp", "127.0.0.1:514"),
                True,
            ),
            (listener("syslog-unix", "/run/a"), listener("syslog-unix", "/run//a"), False),
            (listener("syslog-unix", "/run/a"), listener("syslog-unix", "/run/b"), True),
        ):
            settings = AgentSettings(sources=(one, other))
            if good:
                check(settings, "x.toml")
            else:
                self.assertEqual(self.refused(settings), "sources[1].listen")
        stdin = [SourceTable(kind="custom", type="stdin", name=name) for name in "ab"]
        self.assertEqual(self.refused(AgentSettings(sources=(*stdin,))), "sources[1].type")

    def test_faults_are_named(self) -> None:
        """Each fault names its field."""
        source = SourceTable(kind="file", path="/a")
        for settings, field in (
            (AgentSettings(agent=AgentTable(allow_sources=("files",))), "agent.allow_sources"),
            (AgentSettings(agent=AgentTable(allow_sources=("file:x",))), "agent.allow_sources"),
            (AgentSettings(sources=(SourceTable(kind="file"),)), "sources[0].path"),
            (of(kind="file", path="/a", units=("x",)), "sources[0].units"),
            (of(kind="file", path="/a", exclude=("b",)), "sources[0].exclude[0]"),
            (of(kind="file", path="/a", timezone="Mars/Base"), "sources[0].timezone"),
            (of(kind="file", path="/a", multiline=MultilineTable()), "sources[0].multiline"),
            (of(kind="journald", matches=("x",)), "sources[0].matches[0]"),
            (of(kind="journald", start="end", since="1h"), "sources[0].since"),
            (of(kind="docker", socket="x"), "sources[0].socket"),
            (of(kind="custom", name="x"), "sources[0].type"),
            (of(kind="custom", type="stdin"), "sources[0].name"),
            (of(kind="custom", type="stdin", name="cortextx"), "sources[0].name"),
            (of(kind="custom", type="stdin", name="x", listen="y"), "sources[0].listen"),
            (of(kind="custom", type="syslog-udp", name="x"), "sources[0].listen"),
            (
                of(kind="custom", type="syslog-tls", name="x", listen="[::1]:5"),
                "sources[0].certificate",
            ),
            (of(kind="custom", type="exec", name="x", command=("ls",)), "sources[0].command"),
            (AgentSettings(rules=(RuleTable(action="sample"),)), "rules[0].keep"),
            (AgentSettings(sources=(source, source)), "sources[1].name"),
            (AgentSettings(agent=AgentTable(buffer_hard_mib=256)), "agent.buffer_hard_mib"),
        ):
            self.assertEqual(self.refused(settings), field)
