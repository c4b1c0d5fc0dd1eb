"""A user's words as full-text queries (A62), given a way to ask the tokenizer.

Words and "quoted phrases" become quoted FTS5 strings, so that nothing in them is
an operator. What the tokenizer cannot see is looked for as it stands: a text
without any token (`***`), and words in scripts that put no spaces between words,
whose runs unicode61 takes for one token.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from cortextx.errors import BadQuery

MAX_TEXT = 4096
"""Characters of a search text."""
MAX_WORDS = 200
"""Different words and phrases of a search text."""
MAX_HINTS = 8
_ITEM = re.compile(r'"([^"]*)"?|([^\s"]+)')
_ASCII_RUN = re.compile(r"[0-9A-Za-z]+")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Thai, Lao, Burmese, Khmer, kana, Han."""


@dataclass(frozen=True, slots=True)
class TextQuery:
    """`match` is an FTS5 query or empty; `literals` LIKE patterns that must match too.

    `hints` are LIKE patterns that every ASCII message which `match` matches also
    matches: a cheap sieve for rows that are not indexed yet.
    """

    match: str
    literals: tuple[str, ...]
    hints: tuple[str, ...]


def read_text(text: str, has_token: Callable[[str], bool]) -> TextQuery:
    """Read a user's text; `has_token` says whether the tokenizer finds one in a string.

    An unclosed quote reaches to the end. Raises BadQuery only for a text that is
    too long or is no text (a lone surrogate).
    """
    check_text("text", text)
    if len(text) > MAX_TEXT:
        raise BadQuery("text", f"at most {MAX_TEXT} characters")
    # NUL is stored as U+FFFD (F16).
    found = _ITEM.finditer(text.replace("\0", "\ufffd"))
    items = dict.fromkeys(item[1] if item[1] is not None else item[2] for item in found)
    if len(items) > MAX_WORDS:
        raise BadQuery("text", f"at most {MAX_WORDS} different words")
    match: list[str] = []
    literals: list[str] = []
    hints: set[str] = set()
    for item in items:
        runs = _ASCII_RUN.findall(item)
        if not item.strip():
            continue
        if _UNSPACED.search(item) or not (runs or has_token(item)):
            literals.append(like(item))
            continue
        match.append(f'"{item}"')
        if runs:
            hints.add(max(runs, key=len))
    longest = sorted(hints, key=len, reverse=True)[:MAX_HINTS]
    return TextQuery(" ".join(match), tuple(literals), tuple(map(like, longest)))


def check_text(field: str, text: str) -> None:
    """Raise BadQuery if a string is no text, for it holds a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadQuery(field, "text without lone surrogates") from None


def like(part: str) -> str:
    r"""A LIKE pattern (ESCAPE '\') for texts that contain `part`."""
    escaped = part.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"
