"""Forms of texts, each with the words for it: a pattern is nothing to show to people (PURE)."""

from __future__ import annotations

import ast
import re
from typing import Any

from msgspec import Meta

_words: dict[str, str] = {}
_MATCHING = re.compile(
    r"`?str`? matching regex (?P<pattern>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
)


def formed(pattern: str, words: str, **bounds: Any) -> Meta:
    """What msgspec checks a text with: `pattern`, and `bounds` as its Meta has them; `words`
    say to people what is expected, as "a time as 90s"."""
    _words[pattern] = words
    return Meta(pattern=pattern, **bounds)


def in_words(complaint: str) -> str:
    """A complaint of msgspec's with words in place of a pattern."""
    return _MATCHING.sub(_said, complaint)


def _said(match: re.Match[str]) -> str:
    try:
        pattern = ast.literal_eval(match["pattern"])
    except (ValueError, SyntaxError):
        return "a text of the declared form"
    return _words.get(pattern, "a text of the declared form")
