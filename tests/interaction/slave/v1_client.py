"""A v1 client on a hub: one connection, one request, and the lines that it reads."""

from __future__ import annotations

import json
from typing import Any

from cortextx.core import exchange as x
from cortextx.core.exchange import Origin
from cortextx.interaction import flat, v1
from cortextx.interaction.opening import OpensRequest, Refused, decide
from cortextx.interaction.slave.v1_service import V1Connection
from cortextx.interfaces.sessions import Peer
from tests.interaction.slave.hub import ME, Hub, Link


class V1Client(Link):
    """Says `request` (a v1 request, or a flat one as a dict) on a connection of its own."""

    def __init__(
        self,
        hub: Hub,
        request: v1.Request | dict[str, Any],
        form: v1.Form = "both",
        peer: Peer = ME,
    ) -> None:
        fresh = f"req-{next(hub.numbers)}"
        machine = V1Connection(
            peer,
            hub.policy,
            hub.next_asker,
            default_agent="echo",
            find_run=lambda agent, run, peer: (
                hub.box.machine.key if hub.box.machine.ledger.run(run) is not None else None
            ),
            fresh_id=fresh,
            form=form,
        )
        super().__init__(hub, machine)
        self.lines: list[bytes] = []
        line = (
            json.dumps(request).encode() + b"\n"
            if isinstance(request, dict)
            else v1.encode_request(request)
        )
        opening = decide(line, form)
        if isinstance(opening, Refused):
            self.out.append(opening.answer)
            self.read()
            return
        assert isinstance(opening, OpensRequest)
        asked = opening.request
        self.request_id = getattr(asked, "request_id", None) or getattr(asked, "id", None) or ""
        if isinstance(asked, flat.Cancel) or not self.request_id:
            self.request_id = fresh
        self.act(machine.opened(asked))
        self.read()

    @property
    def is_closed(self) -> bool:
        """Whether the slave closed the connection."""
        return self.closed is not None

    def read(self) -> list[bytes]:
        """The lines that came since."""
        text, self.out = b"".join(self.out), []
        new = text.splitlines(keepends=True)
        assert all(line.endswith(b"\n") for line in new)
        self.lines += new
        return new

    def say(self, request: v1.Request | bytes) -> list[bytes]:
        """A further line."""
        line = request if isinstance(request, bytes) else v1.encode_request(request)[:-1]
        self.act(self.machine.line_received(line, self.hub.now))
        return self.read()

    def answer(self, command_id: str, result: x.Result | None = None, **more: str) -> list[bytes]:
        """Answer a command."""
        named = {"request_id": self.request_id, "session": "default"} | more
        return self.say(
            v1.CommandResult(command_id=command_id, result=result or x.Accepted(), **named)
        )

    def events(self) -> list[x.Event]:
        """All events, as our own client reads them; what a client skips is left out."""
        self.read()
        found = [v1.decode_reply(line, self.request_id) for line in self.lines]
        return [reply.event for reply in found if reply is not None]

    def seqs(self) -> list[int | None]:
        """The seqs of all lines (I26)."""
        self.read()
        return [json.loads(line).get("session_seq") for line in self.lines]

    def values(self) -> list[dict[str, Any]]:
        """All lines as plain values."""
        self.read()
        return [json.loads(line) for line in self.lines]


def an_input(request_id: str = "r1", text: str = "hi", **more: Any) -> v1.Input:
    """An input."""
    members: dict[str, Any] = {"session": "default", "scope": "private"} | more
    return v1.Input(request_id=request_id, input=text, origin=Origin("test"), **members)


def names(client: V1Client) -> list[str]:
    """What came, by the type's name in v1; an error with its errno."""
    return [
        f"error {event.code}" if isinstance(event, x.Failure) else str(event.__struct_config__.tag)
        for event in client.events()
    ]
