"""What becomes of a probe: its result, or why there is none (PURE, §4.6, §5)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cortextx.errors import CortexError
from cortextx.fleet.contract import Code


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The probe ran: `output` is the JSON text of any value (§4.4 ProbeOutput)."""

    output: bytes = field(repr=False)
    duration_ms: int


class ProbeRefused(CortexError):
    """The probe did not run, or did not end well; `code` is of §5, `data` goes with it."""

    def __init__(self, code: Code, message: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data or {}


class ProbeFault(CortexError):
    """In the child: the probe cannot say what it was asked; the words are for people."""
