"""Makes what a runtime puts out fit to send: what we send decodes (PURE, I40).

A model or a child process may put out text with lone surrogates, or JSON that a
strict decoder refuses. It is mended here before it enters the log, and the
answer says whether it was.
"""

from __future__ import annotations

import re

from msgspec import Raw

from cortextx.core.jsontext import check_value, encode
from cortextx.errors import JsonError

_LONE = re.compile(r"[\ud800-\udfff]")
_PAIR = re.compile("([\ud800-\udbff])([\udc00-\udfff])")
_ESCAPE = re.compile(
    r"(?P<pair>\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    r"|\\."
)


def mend_text(text: str) -> tuple[str, bool]:
    """Return `text` with every lone surrogate as U+FFFD, and whether it had any.

    A pair of surrogates that stands for one character becomes that character.
    """
    if text.isascii() or _LONE.search(text) is None:
        return text, False
    joined = _PAIR.sub(_join, text)
    mended = _LONE.sub("\ufffd", joined)
    return mended, mended != joined


def mend_value(text: bytes) -> tuple[Raw, bool]:
    """Return a JSON value that decodes for the JSON text given, and whether it was changed.

    Bad UTF-8 and lone surrogates become U+FFFD. What is refused all the same (no
    JSON, a number out of range, too deep) becomes a JSON string of its text.
    """
    if _decodes(text):
        return Raw(text), False
    words = _ESCAPE.sub(_mend_escape, text.decode("utf-8", "replace"))
    if _decodes(words.encode()):
        return Raw(words.encode()), True
    return Raw(encode(text.decode("utf-8", "replace"))), True


def _decodes(text: bytes) -> bool:
    try:
        check_value(text)
    except JsonError:
        return False
    return True


def _join(pair: re.Match[str]) -> str:
    return chr(0x10000 + ((ord(pair[1]) & 0x3FF) << 10) + (ord(pair[2]) & 0x3FF))


def _mend_escape(escape: re.Match[str]) -> str:
    return "\\ufffd" if escape["lone"] else escape[0]
