"""The form of a glob: what it may be, and its plainest way to say the same (PURE)."""

from __future__ import annotations

import re

MOST_DEEP = 2
"""Components `**` of a glob at most: each multiplies what has to be looked at."""


def plain_glob(pattern: str) -> str:
    """The glob without a `**` that stands right behind another and adds nothing."""
    parts: list[str] = []
    for part in pattern.split("/"):
        if part != "**" or not parts or parts[-1] != "**":
            parts.append(part)
    return "/".join(parts)


def glob_fault(pattern: str) -> str | None:
    """What is wrong with a glob, in words, or None."""
    if "\x00" in pattern:
        return "a NUL is in no path"
    if plain_glob(pattern).split("/").count("**") > MOST_DEEP:
        return f"more than {MOST_DEEP} components are **"
    try:
        re.compile(translated(pattern), re.DOTALL)
    except re.error:
        return "a range in brackets ends before it begins"
    return None


def translated(pattern: str) -> str:
    """The glob as a regular expression, in which `**` spans directories."""
    out = []
    at = 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            out.append("(?:.*/)?")
            at += 3
        elif pattern.startswith("**", at):
            out.append(".*")
            at += 2
        elif pattern[at] == "*":
            out.append("[^/]*")
            at += 1
        elif pattern[at] == "?":
            out.append("[^/]")
            at += 1
        elif pattern[at] == "[" and (end := pattern.find("]", at + 2)) > 0:
            inner = pattern[at + 1 : end].replace("\\", "\\\\")
            out.append("[^" + inner[1:] + "]" if inner[0] in "!^" else f"[{inner}]")
            at = end + 1
        else:
            out.append(re.escape(pattern[at]))
            at += 1
    return "".join(out)
