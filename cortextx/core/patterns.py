"""Regular expressions from a configuration, in time linear to the text (PURE).

The one place that knows the library, RE2: it has no backtracking, so no pattern can hold
up the lines behind it, whatever they contain. Its price is that look-around and
back-references do not exist. It is imported only when a pattern is compiled.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from cortextx.errors import CortexError

MAX_PATTERN = 4096
"""Characters of a pattern."""
MAX_MEMORY = 8 * 2**20
"""Bytes that one compiled pattern may use."""

_GROUP = re.compile(r"\\(?:g<(\w{1,32})>|(\d)|(.))", re.DOTALL)


class PatternError(CortexError):
    """A pattern cannot be used; the text says why."""


class Pattern:
    """A compiled pattern. May be used from several threads at once."""

    __slots__ = ("_compiled", "text")

    def __init__(self, text: str, compiled: Any) -> None:
        self.text = text
        self._compiled = compiled

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"

    def found_in(self, text: str) -> bool:
        """Whether the pattern occurs anywhere in `text`."""
        return self._compiled.search(text) is not None

    def starts(self, text: str) -> bool:
        """Whether `text` begins with the pattern."""
        return self._compiled.match(text) is not None

    def replace(self, replacement: Replacement, text: str, limit: int) -> tuple[str, int]:
        """`text` with all that matches replaced, and how often that was.

        Where something matches, no more than `limit` + 1 characters are built, and what
        lies behind them is not looked at: a longer result than `limit` is one that was cut.
        """
        if self._compiled.search(text) is None:
            return text, 0
        pieces: list[str] = []
        end = count = 0
        room = limit + 1
        for match in self._compiled.finditer(text):
            before = text[end : match.start()][:room]
            made = replacement.of(match, room - len(before))
            pieces += (before, made)
            room -= len(before) + len(made)
            end = match.end()
            count += 1
            if not room:
                return "".join(pieces), count
        pieces.append(text[end:][:room])
        return "".join(pieces), count


class Replacement:
    r"""What stands for a match: text with `\1`, `\g<name>` for groups, `\\` for `\`.

    Raises PatternError for a group that `pattern` does not have.
    """

    __slots__ = ("_parts",)

    def __init__(self, text: str, pattern: Pattern) -> None:
        compiled = pattern._compiled
        self._parts: list[str | int] = []
        at = 0
        for found in _GROUP.finditer(text):
            self._parts.append(text[at : found.start()])
            at = found.end()
            name = found[1] or found[2]
            if name is None:
                if found[3] != "\\":
                    raise PatternError(f"\\{found[3]} means nothing in a replacement")
                self._parts.append("\\")
                continue
            group = int(name) if name.isdecimal() else compiled.groupindex.get(name)
            if group is None or group > compiled.groups:
                raise PatternError(f"the pattern has no group {name}")
            self._parts.append(group)
        rest = text[at:]
        if rest.endswith("\\"):
            raise PatternError("the replacement ends in a single \\")
        self._parts.append(rest)

    def of(self, match: Any, limit: int) -> str:
        """The text for one match, at most its first `limit` characters."""
        made: list[str] = []
        for part in self._parts:
            text = part if isinstance(part, str) else match.group(part) or ""
            made.append(text[:limit])
            limit -= len(text)
            if limit <= 0:
                break
        return "".join(made)


@lru_cache(maxsize=256)
def compiled(text: str) -> Pattern:
    """Compile a pattern in RE2's syntax; raises PatternError."""
    if not text or len(text) > MAX_PATTERN:
        raise PatternError(f"a pattern has 1 to {MAX_PATTERN} characters")
    try:
        import re2
    except ImportError:  # a platform without a wheel
        raise PatternError("the package google-re2 is not installed") from None
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_MEMORY
    try:
        return Pattern(text, re2.compile(text, options))
    except re2.error as error:
        why = error.args[0] if error.args else "not valid"
        words = why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)
        raise PatternError(f"RE2 refuses it: {words}") from None
    except UnicodeError:
        raise PatternError("a pattern is Unicode text") from None
