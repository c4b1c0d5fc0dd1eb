"""docs/agent.md names every setting of an agent, with its default."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
from twisted.trial.unittest import SynchronousTestCase

from cortextx.fleet.agent.probes.arguments import arguments_of
from cortextx.fleet.agent.probes.catalogue import PROBES
from cortextx.fleet.agent.settings import AgentTable, ServerTable
from cortextx.fleet.agent.tables import (
    MEMBERS,
    TYPE_MEMBERS,
    MultilineTable,
    RuleMatch,
    RuleTable,
    SourceTable,
)

DOC = Path(__file__).parents[2] / "docs" / "agent.md"
TABLES = (
    ("### `[server]`", ServerTable),
    ("### `[agent]`", AgentTable),
    ("### `[[sources]]`", SourceTable),
    ("`multiline` makes", MultilineTable),
    ("### `[[rules]]`", RuleTable),
    ("`match` takes", RuleMatch),
)


def rows_behind(text: str, mark: str) -> dict[str, list[str]]:
    """The rows of the first table behind `mark`, by their first cell."""
    lines = iter(text[text.index(mark) :].splitlines())
    found: dict[str, list[str]] = {}
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            found[cells[0].strip("`")] = cells[1:]
        elif found:
            break
    return found


class Settings(SynchronousTestCase):
    def setUp(self) -> None:
        self.text = DOC.read_text()

    def test_every_key(self) -> None:
        """Each table of the file has its keys there, and no others."""
        for mark, table in TABLES:
            keys = {field.encode_name for field in msgspec.structs.fields(table)}
            self.assertEqual(set(rows_behind(self.text, mark)), keys, mark)

    def test_defaults(self) -> None:
        """Where a default is a value, it is the code's."""
        for mark, table in TABLES:
            for key, default in defaults(table).items():
                said = rows_behind(self.text, mark)[key][0 if len(cells(table)) == 2 else 1]
                if default not in (None, ()) and not isinstance(default, msgspec.Struct):
                    value = json.dumps(default if not isinstance(default, tuple) else [*default])
                    self.assertEqual(said, f"`{value}`", key)

    def test_every_probe(self) -> None:
        """Each probe has its row, and each argument what it may be, as the code has it."""
        rows = rows_behind(self.text, "## Probes")
        self.assertEqual(list(rows), list(PROBES))
        for name, probe in PROBES.items():
            found = [
                f"`{each.name}` ({str(each).partition(': ')[2]})" for each in arguments_of(probe)
            ]
            self.assertEqual(rows[name], [probe.about, ", ".join(found) or "none"])

    def test_whose_each_is(self) -> None:
        """The column `of` names the kinds, or the types of custom sources, that take a key."""
        for key, (of, *_) in rows_behind(self.text, "### `[[sources]]`").items():
            if key in ("kind", "name"):
                self.assertEqual(of, "all")
                continue
            holders = {**MEMBERS, **TYPE_MEMBERS}
            wanted = {name.removeprefix("syslog") for name, has in holders.items() if key in has}
            said = {word.removeprefix("syslog") for word in re.split(r"[,\s]+", of)}
            if "-*" in said:
                said = said - {"-*"} | {"-udp", "-tcp", "-tls", "-unix"}
            self.assertEqual(said, wanted, key)


def cells(table: type) -> tuple[str, ...]:
    """The columns behind the key in a table's documentation."""
    named = ("of", "default", "what")
    return named if table in (SourceTable, RuleTable) else named[1:]


def defaults(table: type) -> dict[str, object]:
    """The defaults of a table, by key."""
    return {
        field.encode_name: field.default
        for field in msgspec.structs.fields(table)
        if field.default is not msgspec.NODEFAULT
    }
