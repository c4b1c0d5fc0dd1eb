"""`cortextx conformance check` says how each row is judged, and whether that was expected."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import tests
from cortextx.app.cli.faults import FOUND, OK, USAGE
from tests.app.scripted import Outcome, Scripted

VECTORS = Path(tests.__file__).parent / "vectors"
HELLO = json.loads((VECTORS / "interaction-v2.jsonl").read_text().partition("\n")[0])


class ConformanceTests(SynchronousTestCase):
    def check(self, *rows: object, options: tuple[str, ...] = ()) -> Outcome:
        path = self.mktemp()
        with open(path, "w") as file:
            for row in rows:
                file.write((row if isinstance(row, str) else json.dumps(row)) + "\n")
        return Scripted()("conformance", "check", "--abi", "interaction-v2", path, *options)

    def row(self, name: str, line: bytes, **more: object) -> dict[str, object]:
        return {"id": name, "frame_b64": base64.b64encode(line).decode(), **more}

    def test_every_vector_agrees(self) -> None:
        for abi in ("interaction-v1", "interaction-v2"):
            path = VECTORS / f"{abi}.jsonl"
            done = Scripted()("conformance", "check", "--abi", abi, str(path))
            self.assertEqual((done.code, done.err), (OK, ""))
            *lines, last = done.out.splitlines()
            rows = [json.loads(row) for row in path.read_text().splitlines()]
            self.assertEqual([line.split()[1] for line in lines], [row["id"] for row in rows])
            self.assertEqual({line.split()[0] for line in lines}, {"ok", "reject"})
            free = sum(row["verdict"] == "any" for row in rows)
            self.assertEqual(last, f"{len(rows) - free} agree, 0 differ, {free} free")

    def test_what_differs_is_named_and_ends_with_a_code(self) -> None:
        done = self.check(HELLO, {**HELLO, "id": "x", "verdict": "reject"}, "", self.row("y", b"{"))
        self.assertEqual(done.code, FOUND)
        first, second, third, last = done.out.splitlines()
        self.assertEqual((first, second), ("ok base-hello", "ok x"))
        self.assertRegex(third, r"^reject y \S")
        self.assertEqual(last, "1 agree, 1 differ, 1 free")
        self.assertRegex(done.err, r":2: x: expected reject\n$")

    def test_json_has_an_object_a_row_and_the_counts(self) -> None:
        done = self.check(HELLO, self.row("y", b"{\n", verdict="ok"), options=("--json",))
        told = [json.loads(line) for line in done.out.splitlines()]
        self.assertEqual([row.get("judged") for row in told], ["ok", "reject", None])
        self.assertEqual([row.get("outcome") for row in told], ["agree", "differ", None])
        self.assertEqual(told[-1], {"agree": 1, "differ": 1, "free": 0})
        self.assertEqual(done.code, FOUND)

    def test_a_row_that_is_none_is_named_by_file_and_line(self) -> None:
        for bad, expected in (
            ("{", "JSON"),
            ({"id": "x"}, "frame_b64 or gen"),
            ({"id": "x", "frame_b64": "!"}, "base64"),
            ({"id": "x", "gen": {"prefix": "", "repeat": "x", "count": 10**9, "suffix": ""}}, "at"),
        ):
            done = self.check(HELLO, bad)
            self.assertEqual(done.code, USAGE)
            self.assertIn(":2: ", done.err)
            self.assertIn(expected, done.err)

    def test_generated_rows_are_generated(self) -> None:
        gen = {"prefix": "{", "repeat": "x", "count": 300_000, "suffix": "\n"}
        done = self.check({"id": "big", "gen": gen, "verdict": "reject"})
        self.assertRegex(done.out, r"^reject big .*262144 bytes\n1 agree")

    def test_ids_are_safe_to_show(self) -> None:
        # S4
        done = self.check(self.row("a\x1b[2Jb", b"{"))
        self.assertIn("reject a\\e[2Jb ", done.out)

    def test_a_file_that_is_not_there_and_a_foreign_abi_are_wrong_usage(self) -> None:
        call = Scripted()
        missing = call("conformance", "check", "--abi", "interaction-v2", os.devnull + "/x")
        self.assertEqual(missing.code, USAGE)
        self.assertEqual(call("conformance", "check", "--abi", "v3", os.devnull).code, USAGE)
