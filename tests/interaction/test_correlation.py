"""Every kind carries exactly its ids, and a fault is answered to the safe ones (I1, I2)."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from cortextx.interaction import data, v2
from cortextx.interaction.correlation import (
    CHAIN,
    DEPTHS,
    Correlation,
    longest_prefix,
)
from cortextx.interaction.faults import IllegalFrame, ShapeFault
from tests.interaction.examples import DATA, identifiers, line, wire

IDS = ["con", "att", "req", "run", "cmd"]

TABLE = {
    "hello welcome": {1},
    "attach attached detach ack gap": {2},
    "input status": {3},
    "cancel accepted started event done": {4},
    "command command_result": {5},
    "error": {1, 2, 3, 4, 5},
}


class DepthTests(SynchronousTestCase):
    def test_the_table_is_the_contracts(self) -> None:
        for kinds, depths in TABLE.items():
            for kind in kinds.split():
                self.assertEqual(DEPTHS[kind], depths)  # type: ignore[index]
        self.assertEqual(len(DEPTHS), sum(len(kinds.split()) for kinds in TABLE))

    def test_of_all_sets_of_ids_only_the_kinds_own_is_decoded(self) -> None:
        """I1: one missing or one too many is a fault; absent and null are the same."""
        sets = list(product([True, False], repeat=5))
        for what in DATA:
            value = wire(what)
            kind = data.KINDS[type(what)][1]
            for present in sets:
                ids = {n: id for n, id, there in zip(CHAIN, IDS, present, strict=True) if there}
                depth = len(ids)
                legal = depth in DEPTHS[kind] and all(present[:depth])
                for correlation in (ids, dict.fromkeys(CHAIN) | ids):
                    text = line(value | {"correlation": correlation})
                    if legal:
                        self.assertEqual(v2.decode(text).correlation.depth, depth)
                    else:
                        self.assertRaises(ShapeFault, v2.decode, text)


class CorrelationTests(SynchronousTestCase):
    def test_no_id_stands_behind_a_missing_one(self) -> None:
        for ids in [("c", None, "r"), ("c", "a", None, None, "m"), ("c", None, None, "x")]:
            self.assertRaises(IllegalFrame, Correlation, *ids)

    def test_an_id_is_an_identifier(self) -> None:
        for wrong in ("", "a" * 129, "é" * 65, "a\x00", "a\x85b", "\n"):
            self.assertRaises(IllegalFrame, Correlation, wrong)
            self.assertRaises(IllegalFrame, Correlation, "c", wrong)
        for right in ("a" * 128, "é" * 64, "a b", "\u2028"):
            self.assertEqual(Correlation(right).depth, 1)

    def test_a_prefix_is_the_first_ids(self) -> None:
        whole = Correlation("c", "a", "r", "x", "m")
        self.assertEqual([whole.prefix(n).depth for n in range(1, 6)], [1, 2, 3, 4, 5])
        self.assertEqual(whole.prefix(2), Correlation("c", "a"))

    def test_the_longest_prefix_ends_before_the_first_id_that_is_none(self) -> None:
        ids: dict[str, object] = dict(zip(CHAIN, IDS, strict=True))
        self.assertEqual(longest_prefix(ids), Correlation(*IDS))
        self.assertEqual(longest_prefix(ids, 3), Correlation(*IDS[:3]))
        for depth, name in enumerate(CHAIN):
            for wrong in (None, 5, "", "a\x00", ["x"], "a" * 129):
                prefix = longest_prefix(ids | {name: wrong})
                self.assertEqual(prefix, Correlation(*IDS[:depth]) if depth else None)
        self.assertIsNone(longest_prefix({}))

    @settings(max_examples=60)
    @given(st.lists(identifiers, min_size=1, max_size=5))
    def test_any_identifiers_make_a_chain(self, ids: list[str]) -> None:
        whole = Correlation(*ids)
        self.assertEqual(whole.depth, len(ids))
        self.assertEqual(longest_prefix(dict(zip(CHAIN, ids, strict=False))), whole)
