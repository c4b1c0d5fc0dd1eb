"""What an agent runs of what it is asked for (F18, F20, F41)."""

from __future__ import annotations

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
from cortextx.fleet.contract import DEFAULT_AGENT_CONFIG, LogSourceConfig

ASKED = DEFAULT_AGENT_CONFIG.log_sources


def file(path: str) -> LogSourceConfig:
    return LogSourceConfig(kind="file", path=path)


class Policy(SynchronousTestCase):
    def test_the_defaults(self) -> None:
        """Of the server's default list files run; the rest is named with a reason (F18)."""
        found = plan(ASKED, DEFAULT_ALLOW, ())
        self.assertEqual([source.path for source in found.run], ["/var/log/**/*.log"])
        why = {left.kind: left.why for left in found.left_out}
        self.assertIn("not available", why["journald"])
        self.assertIn("allow_sources", why["docker"])

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
        found = groups(plan(ASKED, DEFAULT_ALLOW, local).run, DEFAULT_ALLOW)
        self.assertEqual(len(found), 1)
        self.assertEqual(found[0].paths, ("/srv/a/*", "/srv/b/*", "/var/log/**/*.log"))
        self.assertEqual(found[0].allowed, ("/srv/a/*", "/srv/b/*", "/var/log/**"))


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

    def test_faults_are_named(self) -> None:
        """Each fault names its field."""
        source = SourceTable(kind="file", path="/a")
        for settings, field in (
            (AgentSettings(agent=AgentTable(allow_sources=("files",))), "agent.allow_sources"),
            (AgentSettings(agent=AgentTable(allow_sources=("file:x",))), "agent.allow_sources"),
            (AgentSettings(sources=(SourceTable(kind="file"),)), "sources[0].path"),
            (AgentSettings(sources=(source, source)), "sources[1].name"),
            (AgentSettings(agent=AgentTable(buffer_hard_mib=256)), "agent.buffer_hard_mib"),
        ):
            self.assertEqual(self.refused(settings), field)
