"""The names of sessions, agents and spaces, and what long v1 identifiers become (PURE).

Names are parts of paths (session-files), so their set is small; identifiers are
only compared, and may be most any text (I2).
"""

from __future__ import annotations

import re

from blake3 import blake3

from cortextx.core.exchange import is_identifier

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_RESERVED = frozenset({".", "..", "index"})


def is_name(text: str) -> bool:
    """Whether `text` may name a session, an agent or a space (session-files, I41).

    Letters, digits, `.`, `_` and `-`, 128 at most; not `.`, `..` or `index`.
    """
    return _NAME.fullmatch(text) is not None and text not in _RESERVED


def v2_identifier(text: str) -> str:
    """How an identifier of a v1 peer stands in v2 frames and files (I25)."""
    return text if is_identifier(text) else _digested(text)


def v2_name(text: str) -> str:
    """How a session named by a v1 peer is named in v2 frames and on disk (I25, I41)."""
    return text if is_name(text) else _digested(text)


def _digested(text: str) -> str:
    return f"v1-{blake3(text.encode()).hexdigest(length=16)}"
