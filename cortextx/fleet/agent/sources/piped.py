"""Lines of a pipe or terminal as entries, and the readers of such descriptors."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import tzinfo
from typing import Any

from twisted.internet.abstract import FileDescriptor
from twisted.internet.main import CONNECTION_DONE, CONNECTION_LOST
from twisted.python.failure import Failure

from cortextx.fleet.agent.entries import encode_body
from cortextx.fleet.agent.sources.lines import pieces
from cortextx.fleet.agent.sources.parse import LineParser, Parsed
from cortextx.fleet.agent.sources.syslog_framing import Frame, SyslogFramer

READ_BYTES = 65_536


class LineEncoder:
    """Makes entries of one stream's lines.

    `severity` is that of all lines, None: what each says of itself. `app_name` and
    `process_id` are for lines that name none.
    """

    def __init__(
        self,
        source: str,
        *,
        zone: tzinfo | None = None,
        form: str = "auto",
        part_bytes: int = 65_536,
        severity: str | None = None,
        compose: Callable[..., bytes | None] = encode_body,
    ) -> None:
        self._source = source
        self._framer = SyslogFramer("newline", part_bytes)
        self._parser = LineParser(zone, form)
        self._severity = severity
        self._compose = compose
        self._last: Parsed | None = None
        self.app_name: str | None = None
        self.process_id: str | None = None
        self.ended_by_rules = 0
        """Entries that rules dropped."""

    def feed(self, data: bytes, arrival: int) -> list[bytes]:
        """The entries of the lines that these bytes complete; `arrival` in µs."""
        return self._bodies(self._framer.feed(data), arrival)

    def close(self, arrival: int) -> list[bytes]:
        """The stream ends: an unfinished line is an entry, and flagged (F43)."""
        return self._bodies(self._framer.close(), arrival)

    def _bodies(self, frames: list[Frame], arrival: int) -> list[bytes]:
        bodies = []
        for data, part, more, partial in frames:
            first = 0 if part == 1 else part
            for piece in pieces(data, part=first, more=more, partial=partial):
                body = self._body(piece.text, piece.marks, arrival)
                if body is None:
                    self.ended_by_rules += 1
                else:
                    bodies.append(body)
        return bodies

    def _body(self, text: str, marks: dict[str, Any] | None, arrival: int) -> bytes | None:
        if marks is not None and marks.get("part", 1) > 1 and self._last is not None:
            parsed = self._last
        else:
            parsed = self._last = self._parser.parse(text, arrival)
        known = parsed.app_name is not None
        return self._compose(
            ts=parsed.ts,
            severity=self._severity or parsed.severity,
            message=text,
            source=self._source,
            facility=parsed.facility,
            app_name=parsed.app_name if known else self.app_name,
            process_id=parsed.process_id if known or parsed.process_id else self.process_id,
            metadata=None if marks is None else {"cortextx": marks},
        )


class PipeReader(FileDescriptor):
    """Reads a descriptor, which it owns from then on, whenever there is something.

    A descriptor that is ready gives what it has without blocking, so its mode is left
    alone: a terminal is shared with others.
    """

    connected = 1

    def __init__(
        self,
        reactor: Any,
        descriptor: int,
        on_data: Callable[[bytes], None],
        on_end: Callable[[], None],
    ) -> None:
        super().__init__(reactor)
        self._descriptor = descriptor
        self._on_data = on_data
        self._on_end = on_end

    def fileno(self) -> int:
        """The descriptor, -1 once it is closed."""
        return self._descriptor

    def startReading(self) -> None:
        """See `FileDescriptor.startReading`; one that is closed stays so."""
        if self._descriptor >= 0:
            super().startReading()

    def doRead(self) -> Any:
        """The reactor says that there is something."""
        try:
            data = os.read(self._descriptor, READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return CONNECTION_LOST
        if not data:
            return CONNECTION_DONE
        self._on_data(data)
        return None

    def close(self) -> None:
        """Read no more, and say so."""
        if self._descriptor >= 0:
            self.stopReading()
            self.connectionLost(Failure(CONNECTION_DONE))

    def connectionLost(self, reason: Failure) -> None:
        """See `FileDescriptor.connectionLost`."""
        if self._descriptor < 0:
            return
        super().connectionLost(reason)
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)
        self._on_end()
