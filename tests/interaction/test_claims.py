"""A claim tells a retry from a request that only has the same id (I10, I21)."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from msgspec import Raw
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.jsontext import decode, encode
from cortextx.interaction.claims import claim
from tests.interaction.examples import objects

BASE: dict[str, Any] = {
    "kind": "input",
    "session": "default",
    "scope": "private",
    "cwd": "/srv",
    "data": b'{"text":"hi","event":{"a":1,"b":[1,2]}}',
}


class ClaimTests(SynchronousTestCase):
    def test_the_digest_of_a_claim_stays_what_it_is(self) -> None:
        """Logs hold it: a change here makes every earlier retry a conflict."""
        self.assertEqual(
            claim(**BASE).hex(),
            "a694c20591d509c98e3dfd77e1a2ddd074ac8af7b2c559c2c286b42df5cf3f54",
        )

    def test_spelling_makes_no_difference(self) -> None:
        for text in [
            b' { "event" : {"b":[1,2],"a":1}, "text" : "\\u0068i" } ',
            b'{"text":"hi","event":{"a":1,"b":[1,2]},"workspace":null}',
            b'{"text":"hi","event":{"a":1,"b":[1,2]},"cwd":"/else"}',
        ]:
            self.assertEqual(claim(**BASE | {"data": text}), claim(**BASE))

    def test_whatever_would_be_done_otherwise_is_another_claim(self) -> None:
        claims = [
            claim(**BASE | other)
            for other in [
                {},
                {"kind": "cancel"},
                {"kind": "cancel", "run": "a"},
                {"kind": "cancel", "run": "b"},
                {"session": "other"},
                {"scope": "shared"},
                {"cwd": "/"},
                {"cwd": None},
                {"data": b'{"text":"ho","event":{"a":1,"b":[1,2]}}'},
                {"data": b'{"text":"hi","event":{"a":1,"b":[2,1]}}'},
                {"data": b'{"text":"hi","event":{"a":"1","b":[1,2]}}'},
                {"data": b'{"text":"hi"}'},
                {"data": b'{"text":"hi","event":{"a":1,"b":[1,2]},"workspace":"/"}'},
            ]
        ]
        self.assertEqual(len(set(claims)), len(claims))
        self.assertEqual({len(digest) for digest in claims}, {32})

    @settings(max_examples=60, deadline=None)
    @given(objects)
    def test_data_written_anew_has_the_same_claim(self, text: Raw) -> None:
        members = decode(text)
        backwards = encode(dict(reversed(members.items())))
        self.assertEqual(claim(**BASE | {"data": backwards}), claim(**BASE | {"data": text}))
