"""Globs that would never end, or are none, are refused before anything is looked at."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import ConfigError
from cortextx.fleet.agent.policy import plan
from cortextx.fleet.agent.sources.glob_forms import glob_fault, plain_glob
from cortextx.fleet.agent.tables import SourceTable, check_source
from cortextx.fleet.contract import LogSourceConfig


class GlobForms(SynchronousTestCase):
    def test_a_repeated_any_depth_says_nothing_more(self) -> None:
        self.assertEqual(plain_glob("/w/" + "**/" * 60 + "*.log"), "/w/**/*.log")
        self.assertEqual(plain_glob("/w/**/x/**/y"), "/w/**/x/**/y")
        self.assertIsNone(glob_fault("/w/" + "**/" * 60 + "*.log"))

    def test_a59_what_cannot_be_used_is_refused(self) -> None:
        """From a server it is left out with the reason, in the agent's own file an error."""
        for glob in ("/w/**/a/**/b/**/c", "/w/[z-a].log", "/w/\x00"):
            self.assertIsNotNone(glob_fault(glob), glob)
            asked = plan([LogSourceConfig(kind="file", path=glob)], ["file:/w/**"], ())
            self.assertEqual((asked.run, len(asked.left_out)), ((), 1), glob)
            with self.assertRaises(ConfigError) as raised:
                check_source(SourceTable(kind="file", path=glob), "agent.toml", "sources[0]")
            self.assertIn("sources[0].path", str(raised.exception))

    def test_plain_globs_are_fine(self) -> None:
        for glob in ("/var/log/*.log", "/var/log/**/*.log", "/a/[!x]b?.log", "/a/[.log"):
            self.assertIsNone(glob_fault(glob), glob)
