"""Command lines without what must not be told (PURE, S3).

What looks like a secret is replaced: the value of an option or variable with a
telling name, the user part of a URL, long random words. It is a net with holes,
so a probe shows no more of a command line than it needs.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

SHOWN = "[redacted]"
MAX_LINE = 512
"""Characters of a command line that are shown."""

_TELLING = (
    r"(?:pass(?:word|wd|phrase)?|pwd|secret|token|api[-_]?key|access[-_]?key|private[-_]?key"
    r"|auth(?:orization)?|credentials?|cookie|session[-_]?id|bearer|signature|dsn)"
)
_ASSIGNED = re.compile(rf"(?i)([\w.-]*{_TELLING}[\w.-]*\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|\S+)")
_OPTION = re.compile(rf"(?i)^--?[\w-]*{_TELLING}[\w-]*$")
_URL_USER = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/\s@]+@")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+\S+")
_RANDOM = re.compile(r"(?<![\w/.+-])(?=[\w+/=-]*\d)(?=[\w+/=-]*[A-Za-z])[A-Za-z0-9_+/=-]{32,}")
_UNCLEAN = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SHORT_OPTIONS = {
    "mysql": "-p", "mysqldump": "-p", "mysqladmin": "-p", "mariadb": "-p", "sshpass": "-p",
    "curl": "-u", "redis-cli": "-a", "ldapsearch": "-w",
}  # fmt: skip


def redacted(words: Sequence[str]) -> str:
    """A command line, its words given apart, as it may be shown."""
    shown: list[str] = []
    program = words[0].rpartition("/")[2] if words else ""
    short = _SHORT_OPTIONS.get(program)
    hide_next = False
    for word in words:
        if hide_next and not word.startswith("-"):
            shown.append(SHOWN)
            hide_next = False
            continue
        hide_next = _OPTION.match(word) is not None
        if short is not None and word.startswith(short):
            if word == short:
                hide_next = True
            else:
                word = short + SHOWN
        shown.append(redacted_text(word))
    return _UNCLEAN.sub("?", " ".join(shown))[:MAX_LINE]


def redacted_text(text: str) -> str:
    """A text without the secrets that can be told by their form."""
    text = _BEARER.sub(rf"\1 {SHOWN}", text)
    text = _ASSIGNED.sub(rf"\1{SHOWN}", text)
    text = _URL_USER.sub(rf"\1{SHOWN}@", text)
    return _RANDOM.sub(SHOWN, text)
