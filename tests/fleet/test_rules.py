"""Rules before the buffer: what is dropped, sampled, redacted and limited, and counted."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.patterns import PatternError, Replacement, compiled
from cortextx.errors import ConfigError
from cortextx.fleet.agent.composing import Composer, share, tallies
from cortextx.fleet.agent.entries import encode_body
from cortextx.fleet.agent.rules import Rule, compile_rules
from cortextx.fleet.agent.tables import RuleMatch, RuleTable
from cortextx.fleet.contract import MAX_MESSAGE_CHARS


def rules(*tables: RuleTable) -> tuple[Rule, ...]:
    return compile_rules(tables, "agent.toml")


def entry(body: bytes | None) -> dict[str, Any]:
    assert body is not None
    return json.loads(b"{" + body)


class Pipeline:
    """A composer with a clock and chance of the test's own."""

    def __init__(self, *tables: RuleTable, kind: str = "file", name: str = "files") -> None:
        self.now = 0.0
        self.chance = 0.5
        self.rules = rules(*tables)
        self.composer = Composer(
            self.rules, kind, name, clock=lambda: self.now, random=lambda: self.chance
        )

    def __call__(self, message: str = "hello", **more: Any) -> bytes | None:
        facts = {"ts": 0, "severity": "info", "source": "file:/var/log/x", **more}
        return self.composer.compose(message=message, **facts)


class MatchTests(SynchronousTestCase):
    CASES = [
        # match, entry, whether it is dropped
        ({}, {}, True),
        ({"source": "file:/var/log/*"}, {}, True),
        ({"source": "file:/var/log/*"}, {"source": "file:/var/log/a/b"}, True),
        ({"source": "file:/var/log/y"}, {}, False),
        ({"source": "docker:*"}, {}, False),
        ({"app": "ng*"}, {"app_name": "nginx"}, True),
        ({"app": "ng*"}, {}, False),
        ({"severity_min": "warning"}, {"severity": "err"}, True),
        ({"severity_min": "warning"}, {"severity": "warning"}, True),
        ({"severity_min": "warning"}, {}, False),
        ({"severity_max": "info"}, {"severity": "debug"}, True),
        ({"severity_max": "info"}, {"severity": "notice"}, False),
        ({"message": "^h.l+o$"}, {}, True),
        ({"message": "bye"}, {}, False),
        ({"message": "(?i)HELLO", "app": "a"}, {}, False),
        ({"message": "é"}, {"message": "café"}, True),
    ]

    def test_all_that_is_given_must_hold(self) -> None:
        for match, more, dropped in self.CASES:
            compose = Pipeline(RuleTable(action="drop", match=RuleMatch(**match)))
            self.assertEqual(compose(**more) is None, dropped, (match, more))

    def test_no_rule_no_cost(self) -> None:
        """Where no rule can apply, composing is the plain encoding itself."""
        self.assertIs(Composer((), "file", "files").compose, encode_body)
        only = rules(RuleTable(action="drop", match=RuleMatch(source="docker:*")))
        self.assertIs(Composer(only, "journald", "journald").compose, encode_body)
        self.assertIs(Composer(only, "custom", "router").compose, encode_body)
        self.assertIsNot(Composer(only, "docker", "docker").compose, encode_body)


class ActionTests(SynchronousTestCase):
    def test_in_order(self) -> None:
        """A rule sees what those before it left, and a dropped entry meets no further rule."""
        compose = Pipeline(
            RuleTable(action="redact", pattern="secret", replacement="gone"),
            RuleTable(action="drop", match=RuleMatch(message="gone")),
            RuleTable(action="sample", keep=0.6, name="half"),
        )
        self.assertIsNone(compose("a secret"))
        self.assertIsNotNone(compose("nothing"))
        self.assertEqual(
            tallies(compose.rules),
            {
                "rules[0]": {"matched": 2, "dropped": 0, "redacted": 1},
                "rules[1]": {"matched": 1, "dropped": 1, "redacted": 0},
                "half": {"matched": 1, "dropped": 0, "redacted": 0},
            },
        )

    def test_a_sample_says_so(self) -> None:
        """What a sample keeps carries its share, whatever its metadata was."""
        compose = Pipeline(RuleTable(action="sample", keep=0.25))
        self.assertIsNone(compose())
        compose.chance = 0.2
        for before in (None, {"a": 1}, b'{"a":1,"cortextx":{"part":1}}'):
            found = entry(compose(metadata=before))["metadata"]
            self.assertEqual(found["cortextx"]["sampled"], 0.25)
            self.assertEqual(found.get("a"), None if before is None else 1)

    def test_a_sample_by_value_is_always_the_same(self) -> None:
        """The same message is always kept or never, and about the share of all is kept."""
        compose = Pipeline(RuleTable(action="sample", keep=0.3, by="message"))
        first = [compose(f"message {n}") is not None for n in range(2000)]
        compose.chance = 0.99
        self.assertEqual([compose(f"message {n}") is not None for n in range(2000)], first)
        self.assertTrue(500 < sum(first) < 700, sum(first))
        self.assertEqual(share("é\udcff"), share("é\udcff"))

    def test_a_limit_is_for_each_source(self) -> None:
        """One file's flood takes nothing from another's rate, and time makes up for it."""
        compose = Pipeline(RuleTable(action="limit", rate=2, burst=3))
        kept = [compose(source="file:/a") is not None for _ in range(5)]
        self.assertEqual(kept, [True, True, True, False, False])
        self.assertIsNotNone(compose(source="file:/b"))
        compose.now = 1.0
        kept = [compose(source="file:/a") is not None for _ in range(3)]
        self.assertEqual(kept, [True, True, False])
        self.assertEqual(compose.rules[0].tally.dropped, 3)


class RedactTests(SynchronousTestCase):
    def test_message_and_metadata(self) -> None:
        """Strings are redacted wherever they stand; numbers and names stay."""
        compose = Pipeline(RuleTable(action="redact", pattern=r"(?P<k>token)=\S+",
                                     replacement=r"\g<k>=*\1"))  # fmt: skip
        metadata = {"a": ["token=1", {"b": "x token=2"}], "n": 7, "token=3": "y"}
        for form in (metadata, json.dumps(metadata).encode()):
            found = entry(compose("é token=abc, token=ü", metadata=form))
            self.assertEqual(found["message"], "é token=*token token=*token")
            wanted = {"a": ["token=*token", {"b": "x token=*token"}], "n": 7, "token=3": "y"}
            self.assertEqual(found["metadata"], wanted)
        self.assertEqual(compose.rules[0].tally.redacted, 8)

    def test_kept_bytes_tell_no_secret(self) -> None:
        """F16's copy of bytes that are no text goes once something was redacted."""
        compose = Pipeline(RuleTable(action="redact", pattern=r"token=\w+"))
        raw = {"cortextx": {"raw": b64encode(b"token=abc\xff").decode(), "part": 1}}
        found = entry(compose("token=abc�", metadata=raw))
        self.assertEqual(found["message"], "[redacted]�")
        self.assertEqual(found["metadata"], {"cortextx": {"part": 1, "cut": True}})
        self.assertEqual(entry(compose("no secret", metadata=raw))["metadata"], raw)

    def test_never_longer_than_an_entry_may_be(self) -> None:
        """Replacements that make a message too long cut it, and say so (F17)."""
        compose = Pipeline(RuleTable(action="redact", pattern="x", replacement="yy"))
        found = entry(compose("x" * MAX_MESSAGE_CHARS))
        self.assertEqual(found["message"], "y" * MAX_MESSAGE_CHARS)
        self.assertEqual(found["metadata"], {"cortextx": {"cut": True}})

    def test_replacements_do_not_multiply(self) -> None:
        """A long replacement of many matches, or of a group many times, is built no further
        than an entry goes; metadata that would be too big is cut to our own marks (F17)."""
        for more in ({"replacement": "y" * 1000}, {"replacement": r"\1" * 1000}):
            rule = RuleTable(action="redact", pattern="(x{1,1000})", **more)
            found = entry(Pipeline(rule)("x" * MAX_MESSAGE_CHARS))
            self.assertEqual(len(found["message"]), MAX_MESSAGE_CHARS)
            self.assertEqual(found["metadata"], {"cortextx": {"cut": True}})
            [one] = rules(rule)
            assert one.pattern is not None and one.replacement is not None
            made, count = one.pattern.replace(one.replacement, "x" * 50_000, 2000)
            self.assertEqual(len(made), 2001)
            self.assertLess(count, 4)
        compose = Pipeline(RuleTable(action="redact", pattern="x", replacement="y" * 1000))
        facts = {"a": "x" * 100_000, "b": ["x" * 100_000], "cortextx": {"part": 1, "s": "x"}}
        found = entry(compose("ax", metadata=facts))
        self.assertEqual(found["message"], "a" + "y" * 1000)
        self.assertEqual(found["metadata"], {"cortextx": {"part": 1, "cut": True}})
        self.assertLess(compose.rules[0].tally.redacted, 1000)

    def test_no_pattern_takes_long(self) -> None:
        """A pattern that takes a backtracking engine years is linear here."""
        compose = Pipeline(RuleTable(action="redact", pattern=r"(a|aa)+$"))
        self.assertIsNotNone(compose("a" * 50_000 + "b"))

    @settings(max_examples=100, deadline=None)
    @given(st.text(max_size=40), st.text(max_size=5))
    def test_what_matches_is_gone(self, text: str, more: str) -> None:
        """Whatever surrounds it, no secret is left in any string."""
        text = text.encode("utf-8", "replace").decode()
        compose = Pipeline(RuleTable(action="redact", pattern=r"s3cr3t[0-9]+"))
        body = compose(f"{text}s3cr3t12{more}", metadata={"x": {"y": [f"s3cr3t3{text}"]}})
        assert body is not None
        self.assertNotIn(b"s3cr3t1", body)
        self.assertNotIn(b"s3cr3t3", body)


class ConfigTests(SynchronousTestCase):
    BAD = [
        (RuleTable(action="redact", pattern="(?=x)"), "rules[1].pattern"),
        (RuleTable(action="redact", pattern=r"(x)\1"), "rules[1].pattern"),
        (RuleTable(action="redact", pattern="x*"), "rules[1].pattern"),
        (RuleTable(action="redact", pattern="(x"), "rules[1].pattern"),
        (RuleTable(action="redact", pattern="x{1000}{1000}"), "rules[1].pattern"),
        (RuleTable(action="redact", pattern="x", replacement=r"\1"), "rules[1].replacement"),
        (RuleTable(action="redact", pattern="x", replacement="a\\"), "rules[1].replacement"),
        (RuleTable(action="redact", pattern="x", replacement=r"\q"), "rules[1].replacement"),
        (RuleTable(action="redact"), "rules[1].pattern"),
        (RuleTable(action="sample"), "rules[1].keep"),
        (RuleTable(action="limit"), "rules[1].rate"),
        (RuleTable(action="drop", keep=0.5), "rules[1].keep"),
        (RuleTable(action="drop", by="message"), "rules[1].by"),
        (RuleTable(action="drop", match=RuleMatch(message="[")), "rules[1].match.message"),
        (RuleTable(action="drop", name="one"), "rules[1].name"),
        (
            RuleTable(action="drop", match=RuleMatch(severity_min="err", severity_max="emerg")),
            None,
        ),
        (
            RuleTable(action="drop", match=RuleMatch(severity_min="err", severity_max="info")),
            "rules[1].match.severity_max",
        ),
    ]

    def test_a_bad_rule_is_named(self) -> None:
        """The error says which rule and which member it is."""
        first = RuleTable(action="drop", name="one", match=RuleMatch(app="x"))
        for table, field in self.BAD:
            if field is None:
                rules(first, table)
                continue
            error = self.assertRaises(ConfigError, rules, first, table)
            self.assertEqual((error.where, error.field), ("agent.toml", field))

    def test_replacements(self) -> None:
        r"""`\1`, `\g<name>` and `\\` mean what they do in Python, and nothing else does."""
        pattern = compiled(r"(?P<a>x)(y)?")
        for text, wanted in ((r"[\1]", "[x]"), (r"\g<a>\2", "x"), (r"\\1", r"\1"), ("", "")):
            self.assertEqual(pattern.replace(Replacement(text, pattern), "x", 9), (wanted, 1))
        self.assertRaises(PatternError, Replacement, r"\g<b>", pattern)
        self.assertRaises(PatternError, compiled, "")
