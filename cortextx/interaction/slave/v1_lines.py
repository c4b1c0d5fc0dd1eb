"""What a v1 client is told: facts and live content as event lines of its request (PURE; I6).

Identifiers go back to the client as it wrote them (I25).
"""

from __future__ import annotations

from collections.abc import Sequence

from cortextx.core import exchange
from cortextx.core.exchange import Event, Failure, RunDone
from cortextx.errors import LocalProtocolError, RemoteProtocolError
from cortextx.interaction import data, v1
from cortextx.interaction.faults import Code
from cortextx.interaction.slave.lines import Ids, data_of


class V1Lines:
    """The event lines of one request; `form` is how they are written."""

    def __init__(self, request: v1.Request, form: v1.Form) -> None:
        self._request = request
        self._forms: Sequence[v1.Form] = (form, "framed", "flat")

    def fact(self, text: bytes, seq: int, ids: Ids) -> bytes | None:
        """The line of a durable fact, or None if v1 has no event for it."""
        try:
            content = data_of(text)
        except RemoteProtocolError:
            return None
        return self.live(content, ids, seq)

    def live(
        self, content: data.Data | data.Opaque, ids: Ids, seq: int | None = None
    ) -> bytes | None:
        """The line of any content, or None if v1 has no event for it."""
        event = self._event(content, ids)
        return None if event is None else self._encode(event, seq)

    def failure(self, code: str, message: str, *, ends: bool) -> bytes:
        """The line of an error; where it `ends` the stream it is not retryable."""
        request_id = self._request.request_id
        return self._encode(Failure(request_id, code=code, message=message, retryable=not ends))

    def gap(self, first: int, last: int) -> bytes:
        """The line that tells of events which retention took (I9)."""
        return self.failure("ERANGE", f"events {first} to {last} are not retained", ends=False)

    def _event(self, content: data.Data | data.Opaque, ids: Ids) -> Event | None:
        request = self._request
        request_id, run = request.request_id, ids.run_id or "-"
        if isinstance(request, v1.Cancel):
            return (
                RunDone(request_id, run, content.status) if isinstance(content, data.Done) else None
            )
        session = request.session
        match content:
            case data.Accepted():
                return exchange.RunAccepted(request_id, session, run)
            case data.Started(model=model):
                return exchange.RunStarted(request_id, run, model)
            case data.Delta(text=text):
                return exchange.Delta(request_id, run, text)
            case data.Message(role=role, text=text):
                if role == "user" and isinstance(request, v1.Input):
                    return None  # I37
                return exchange.Message(request_id, run, role, text)
            case data.Tool(call_id=call_id, name=name, state=state):
                return exchange.ToolCall(request_id, run, call_id, name, state)
            case data.Command(command=command):
                return exchange.CommandIssued(request_id, run, ids.command_id or "-", command)
            case data.SessionState(status=status, phase=phase, step=step):
                return exchange.SessionStatus(request_id, session, status, phase, step)
            case data.Done(status=status, error=error):
                if error is not None and isinstance(request, v1.Input):
                    return Failure(
                        request_id, run=run, code="EIO", message=error.message, retryable=False
                    )
                return RunDone(request_id, run, status)
        return None

    def _encode(self, event: Event, seq: int | None = None) -> bytes:
        """The line, in a shorter form where it would be too long."""
        for form in self._forms:
            try:
                return v1.encode_event(event, form, seq)
            except LocalProtocolError:
                continue
        raise LocalProtocolError("an event fits no frame")


def errno_of(code: str) -> str:
    """The errno name that says a code of ours to a v1 client."""
    try:
        return Code(code).errno
    except ValueError:
        return "EINVAL"
