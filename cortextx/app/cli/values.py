"""Arguments as NAME=VALUE: what a probe is asked with, what a config is set to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click
import msgspec


def assignments(words: Iterable[str], what: str) -> dict[str, Any]:
    """NAME=VALUE words as an object; raises UsageError, which calls such a word `what`.

    A value that is JSON (a number, true, null, a list, "a text in quotes") is that;
    anything else is a text as it stands.
    """
    found: dict[str, Any] = {}
    for word in words:
        name, given, text = word.partition("=")
        if not given or not name:
            raise click.UsageError(f"{word!r} is no {what} as NAME=VALUE")
        if name in found:
            raise click.UsageError(f"{name!r} is given twice")
        found[name] = value(text)
    return found


def value(text: str) -> Any:
    """A text as the JSON value that it is, or as itself."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return text
