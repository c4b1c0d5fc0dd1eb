"""What identifiers and names of v1 peers become in v2 frames and files (PURE).

Names are parts of paths (`core.names`), so their set is small; identifiers are
only compared, and may be most any text (I2).
"""

from __future__ import annotations

from blake3 import blake3

from cortextx.core.exchange import is_identifier
from cortextx.core.names import is_name as is_name


def v2_identifier(text: str) -> str:
    """How an identifier of a v1 peer stands in v2 frames and files (I25)."""
    return text if is_identifier(text) else _digested(text)


def v2_name(text: str) -> str:
    """How a session named by a v1 peer is named in v2 frames and on disk (I25, I41)."""
    return text if is_name(text) else _digested(text)


def _digested(text: str) -> str:
    return f"v1-{blake3(text.encode()).hexdigest(length=16)}"
