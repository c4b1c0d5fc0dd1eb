"""What a declared field may be is told by its values."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.choices import choices, one_of


class Level(Enum):
    low = "low"
    high = "high"


class Inner(Struct):
    kind: Annotated[Literal["a", "b"], Meta(description="x")] | None = None


class Outer(Struct):
    order: Literal["up", "down"] = "up"
    level: Level = Level.low
    free: str = ""
    rows: tuple[Inner, ...] = ()
    by_name: dict[str, Inner] = field(default_factory=dict, name="byName")
    many: list[Literal[1, 2]] = []


class Choices(SynchronousTestCase):
    def test_values(self) -> None:
        """Wherever the field stands; nothing of one that is free, or that is none."""
        for place, expected in (
            ("$.order", ("down", "up")),
            ("$.level", ("high", "low")),
            ("$.rows[0].kind", ("a", "b")),
            ("$.rows[...].kind", ("a", "b")),
            ("$.byName[...].kind", ("a", "b")),
            ("$.many[3]", ("1", "2")),
            ("$.free", ()),
            ("$.rows", ()),
            ("$.nonesuch.kind", ()),
            ("$", ()),
        ):
            found: Any = choices(Outer, place)
            self.assertEqual(sorted(found), sorted(expected), place)

    def test_words(self) -> None:
        """As an error says what is expected."""
        self.assertEqual(one_of(Outer, "$.order"), "one of down, up")
        self.assertIsNone(one_of(Outer, "$.free"))
