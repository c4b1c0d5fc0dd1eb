"""What an attachment has asked for and waits for (PURE)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cortextx.core.exchange import Command, Origin, Result
from cortextx.interaction import data, v2
from cortextx.interaction.correlation import Correlation


@dataclass(slots=True)
class Request:
    """An input, a status request or a cancel; `run_id` is an input's once it is known."""

    kind: Literal["input", "status", "cancel"]
    id: str
    content: data.Input | data.StatusRequest | data.Cancel
    origin: Origin | None = None
    run_id: str | None = None
    is_sent: bool = False
    times: int = 0
    is_accepted: bool = False

    def line(self, connection_id: str, attachment_id: str) -> bytes:
        """The frame of it."""
        run_id = self.run_id if self.kind == "cancel" else None
        ids = Correlation(connection_id, attachment_id, self.id, run_id)
        return v2.encode(data.build(self.content, ids, origin=self.origin))


@dataclass(slots=True)
class OpenCommand:
    """A command that may be answered, and the answer once it was."""

    id: str
    request_id: str
    run_id: str
    command: Command
    effect_id: str | None
    result: Result | None = None
    is_waited_for: bool = False

    def line(self, connection_id: str, attachment_id: str) -> bytes:
        """The frame of the answer."""
        assert self.result is not None
        ids = Correlation(connection_id, attachment_id, self.request_id, self.run_id, self.id)
        return v2.encode(data.build(data.CommandResult(self.result, self.effect_id), ids))
