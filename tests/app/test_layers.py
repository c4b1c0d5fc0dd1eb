"""The contract on pure modules covers every module that says of itself that it is one."""

from __future__ import annotations

import ast
import configparser
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import cortextx

ROOT = Path(cortextx.__file__).parent.parent
CONTRACT = "importlinter:contract:pure"


def says_pure(path: Path) -> bool:
    """Whether a module's docstring has the mark `(PURE` in its first paragraph."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return "(PURE" in text.partition("\n\n")[0] or "PURE)" in text.partition("\n\n")[0]


class Pure(SynchronousTestCase):
    """.importlinter and the modules agree."""

    def test_all_listed(self) -> None:
        """A module marked PURE stands in the contract, itself or by its package."""
        config = configparser.ConfigParser()
        config.read(ROOT / ".importlinter")
        listed = config[CONTRACT]["source_modules"].split()
        missing = []
        for path in sorted((ROOT / "cortextx").rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            covered = any(name == entry or name.startswith(f"{entry}.") for entry in listed)
            if says_pure(path) and not covered:
                missing.append(name)
        self.assertEqual(missing, [], f"add them to {CONTRACT} in .importlinter")
