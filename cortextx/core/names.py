"""The names of sessions, agents and spaces (PURE).

They are parts of paths (session-files), so their set is small.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_RESERVED = frozenset({".", "..", "index"})


def is_name(text: str) -> bool:
    """Whether `text` may name a session, an agent or a space (session-files, I41).

    Letters, digits, `.`, `_` and `-`, 128 at most; not `.`, `..` or `index`.
    """
    return _NAME.fullmatch(text) is not None and text not in _RESERVED
