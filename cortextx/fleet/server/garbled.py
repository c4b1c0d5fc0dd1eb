"""What can be told of an answer that cannot be read: to which request it is (PURE; §4.7)."""

from __future__ import annotations

import re
from itertools import islice

_TOKEN = re.compile(
    rb'"(?P<text>(?:[^"\\]|\\.?)*)(?:"(?P<colon>\s*:(?:\s*(?P<number>\d{1,18})\s*[,}])?)?|\Z)'
    rb"|[{}\[\]]",
    re.DOTALL,
)
"""A text, with what follows it if it is a key; else a bracket. A text that does not end takes
all the rest, so that nothing is looked at twice."""
_TOKENS, _BYTES = 5000, 32 << 10
"""How many are looked at: an id further on is not found, and the probe ends by its time."""


def answered_id(payload: bytes) -> int | None:
    """The number in the member `id` of what looks like a response: an object, as far as it can
    be followed in a few ms, with a result or an error and without a method. None for all else."""
    depth = 0
    members: dict[bytes, int | None] = {}
    for token in islice(_TOKEN.finditer(payload, 0, _BYTES), _TOKENS):
        if token["text"] is not None:
            if depth == 1 and token["colon"] and token["text"] not in members:
                members[token["text"]] = int(token["number"]) if token["number"] else None
            if not (token["number"] and token[0].endswith(b"}")):
                continue
            depth -= 1
        elif token[0] in b"{[":
            depth += 1
        else:
            depth -= 1
        if depth <= 0:
            break
    if b"method" in members or not (b"result" in members or b"error" in members):
        return None
    return members.get(b"id")
