"""Claims: how a request is told from another with the same id (PURE; I10, I21).

A claim is the BLAKE3 of a canonical form of what would be done. The order of
members, white space, escapes and members that are null make no difference, any
other does. Origin and attachment are no part of it.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from blake3 import blake3
from msgspec import Raw

from cortextx.core.exchange import Scope
from cortextx.core.jsontext import Decoder

_data: Decoder[dict[str, Any]] = Decoder(dict[str, Any])
_canonical = msgspec.json.Encoder(order="deterministic").encode


def claim(
    kind: Literal["input", "cancel"],
    *,
    session: str,
    scope: Scope,
    cwd: str | None,
    data: Raw | bytes,
    run: str | None = None,
) -> bytes:
    """The claim (32 bytes) of a request; `data` is the v2 frame's, checked JSON.

    `cwd` is the effective working directory and stands for that in `data`; a cancel
    has none, and names its `run`.
    """
    members = _data.decode(data, utf8_checked=True)
    members.pop("cwd", None)
    present = {name: value for name, value in members.items() if value is not None}
    return blake3(_canonical([kind, session, scope, cwd, run, present])).digest()
