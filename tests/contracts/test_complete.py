"""Every section and every ruling of the fleet contract has a test that names it."""

from __future__ import annotations

import re
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.contracts import schemas

HERE = Path(__file__).parent
SECTIONS = ("2", "3", "4_1", "4_2", "4_3", "4_4", "4_5", "4_6", "4_7", "4_8", "5", "6", "7", "8",
            "9", "11")  # fmt: skip
RULINGS = range(1, 45)
ELSEWHERE = {
    19: ("fleet/test_buffer_writer.py", "test_those_that_cannot_wait_push_the_oldest_out_F19"),
    40: ("app/test_cli_enroll.py", "test_secrets_do_not_show"),
}
"""Rulings that need a buffer's files or a command line: the file below tests/ and the test."""


class Complete(SynchronousTestCase):
    def setUp(self) -> None:
        text = "".join(path.read_text() for path in sorted(HERE.glob("test_*.py")))
        self.names = re.findall(r"def (test_\w+)", text)

    def named(self, word: str) -> list[str]:
        return [name for name in self.names if re.search(rf"_{word}(?=_)", name)]

    def test_every_section_is_tested(self) -> None:
        """§2 to §9 and §11, each method of §4 apart (§1 and §10 state nothing to test)."""
        for section in SECTIONS:
            self.assertNotEqual(self.named(f"s{section}"), [], section)

    def test_every_ruling_is_tested(self) -> None:
        """F1 to F44, here or where ELSEWHERE says."""
        here = {number for number in RULINGS if self.named(f"f{number}")}
        self.assertEqual(set(RULINGS) - here, set(ELSEWHERE))
        for number, (file, name) in ELSEWHERE.items():
            text = (HERE.parent / file).read_text()
            self.assertIn(f"def {name}", text)
            self.assertIn(f"F{number}", text)

    def test_every_code_is_tested(self) -> None:
        """Every error code that a server sends has a test named after it (§5)."""
        for code in schemas.SENT_BY_SERVER:
            self.assertNotEqual([n for n in self.names if f"_{-code}" in n], [], code)
