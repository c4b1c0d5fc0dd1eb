"""Names end where they end: a newline behind one makes it another text."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.admin import _Name
from cortextx.fleet.server.settings import ServerTable
from cortextx.web.api_configs import GroupName
from cortextx.web.api_hosts import HostName
from cortextx.web.tokens import TokenName
from tests.web.case import described


class Patterns(SynchronousTestCase):
    def test_no_newline_behind_a_name(self) -> None:
        """Of tokens, groups and hosts, over HTTP and on the admin socket."""
        kinds: tuple[Any, ...] = (TokenName, GroupName, HostName, _Name)
        for kind in kinds:
            self.assertEqual(msgspec.convert("web1", kind), "web1")
            self.assertRaises(msgspec.ValidationError, msgspec.convert, "web1\n", kind)

    def test_no_newline_behind_a_version(self) -> None:
        """Nor behind min_agent_version."""
        table = {"min_agent_version": "1.0.0\n"}
        self.assertRaises(msgspec.ValidationError, msgspec.convert, table, ServerTable)

    def test_the_description_has_other_peoples_patterns(self) -> None:
        """The OpenAPI document's patterns are those of JSON Schema: no \\A and \\Z in them."""
        text = json.dumps(described().document)
        self.assertNotIn("\\\\Z", text)
        self.assertNotIn("\\\\A", text)
        self.assertIn("$", text)
