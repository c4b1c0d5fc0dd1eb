"""docs/operations.md lists every setting of the server, as the code has it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from cortextx.app.config import load
from cortextx.app.reload import FIXED
from cortextx.fleet.server.settings import ServerSettings

DOC = Path(__file__).parents[2] / "docs" / "operations.md"
ROW = re.compile(r"\| `(\w+)\.(\w+)` \| (.+) \| (.+) \| (.+) \| (.+) \| (.+) \|")
UNLISTED = "agent_config.log_sources"
"""Its default is told in words."""


def listed() -> dict[tuple[str, str], list[str]]:
    """The cells behind the key of each row: variable, default, unit, live, what."""
    text = DOC.read_text().partition("### All settings of the server")[2].partition("\n## ")[0]
    found = {}
    for table, name, *cells in ROW.findall(text):
        assert (table, name) not in found, name
        found[table, name] = cells
    return found


def settings() -> dict[tuple[str, str], Any]:
    """Every setting and its default."""
    whole = ServerSettings()
    tables = {name: getattr(whole, name) for name in whole.__struct_fields__}
    return {
        (table, name): getattr(value, name)
        for table, value in tables.items()
        for name in value.__struct_fields__
    }


class SettingsTable(SynchronousTestCase):
    def test_each_is_there_once(self) -> None:
        """No setting is missing, and none is listed that there is not."""
        self.assertEqual(sorted(listed()), sorted(settings()))

    def test_defaults(self) -> None:
        """What stands there as the default is it."""
        for key, value in settings().items():
            shown = listed()[key][1]
            if ".".join(key) == UNLISTED:
                continue
            if value is None:
                self.assertEqual(shown, "none", key)
            else:
                wanted = list(value) if isinstance(value, tuple) else value
                self.assertEqual(json.loads(shown.strip("`")), wanted, key)

    def test_variables(self) -> None:
        """The variables set the settings that they stand beside."""
        for key, value in settings().items():
            variable = listed()[key][0].strip("`")
            self.assertEqual(variable, f"CORTEXTX_{'_'.join(key).upper()}")
            if key[0] == "agent_config" or value is None or value == ():
                continue
            text = json.dumps(list(value) if isinstance(value, tuple) else value)
            origins: dict[str, str] = {}
            load(ServerSettings, environ={variable: text.strip('"')}, origins=origins)
            self.assertEqual(origins, {".".join(key): variable})

    def test_live(self) -> None:
        """It says of each whether a reload is enough (A59)."""
        for (table, name), cells in listed().items():
            fixed = table == "server" and name in FIXED
            self.assertEqual(cells[3], "restart" if fixed else "yes", name)

    def test_units(self) -> None:
        """What has a unit in its name has the same in its row."""
        units = {"secs": "s", "ms": "ms", "bytes": "bytes", "days": "days", "mib": "MiB"}
        units |= {"hours": "h", "sec": "/s", "minute": "/min"}
        for (_, name), cells in listed().items():
            unit = units.get(name.rpartition("_")[2])
            if unit is not None:
                self.assertTrue(cells[2].endswith(unit), (name, cells[2]))
