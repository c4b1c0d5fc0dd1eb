"""A whole server in memory, and peers that check every message that it sends them.

The site, the WebSocket, the sessions and the service are real; the store is the
one in memory, and transport and clock are not. Whatever a peer is sent must be a
message of the contract, by `schemas`, or the test fails.
"""

from __future__ import annotations

import json
from typing import Any
from unittest import TestCase

from cortextx.interfaces.fleet import EntryFilter
from tests import wire
from tests.contracts import examples, schemas
from tests.fleet import test_server_protocol as base
from tests.wire import CLOSE, PING, PONG, TEXT, Frame, frame

HOST_ID = wire.HOST_ID
OTHER_ID = "00000000-0000-4000-8000-00000000000b"


class Peer(base.Peer):
    """An agent by hand. `asked` is the method of each request that it sent, by id."""

    def __init__(self, site: Any, test: TestCase) -> None:
        super().__init__(site)
        self.asked: dict[Any, str] = {}
        self._test = test
        self._ids = iter(range(100, 100_000))

    def frames(self) -> list[Frame]:
        """What came since, each message checked."""
        found = super().frames()
        for one in found:
            if one.opcode == TEXT:
                self._test.assertEqual(schemas.server_faults(one.json, self.asked), [], one.payload)
        return found

    def say(self, message: Any) -> None:
        """Send one message."""
        if isinstance(message, dict) and isinstance(message.get("id"), str | int | float):
            self.asked[message["id"]] = str(message.get("method"))
        self.send(frame(TEXT, json.dumps(message).encode()))

    def text(self, payload: bytes) -> None:
        """Send any text message."""
        self.send(frame(TEXT, payload))

    def ask(self, method: str, params: Any) -> Any:
        """Send a request; answers its response, the only message that came."""
        id = next(self._ids)
        self.say(wire.request(id, method, params))
        [answer] = [one.json for one in self.frames() if one.opcode == TEXT]
        assert answer["id"] == id, answer
        return answer

    def tell(self, method: str, params: Any) -> None:
        """Send a notification."""
        self.say({"jsonrpc": "2.0", "method": method, "params": params})

    def push(self, first: int, count: int = 1, **changes: Any) -> Any:
        """Push so many entries; answers the response."""
        return self.ask("logs.push", examples.push(first, count, **changes))

    def messages(self) -> list[Any]:
        """The text messages that came."""
        return [one.json for one in self.frames() if one.opcode == TEXT]

    def pongs(self, frames: list[Frame]) -> None:
        """Answer the pings among frames that came."""
        for one in frames:
            if one.opcode == PING:
                self.send(frame(PONG, one.payload))


class ContractCase(base.FleetCase):
    """Tests on one server with one enrolled host, whose id is HOST_ID."""

    def socket(self) -> Peer:
        """An upgraded connection that has said nothing."""
        peer = Peer(self.site, self)
        peer.upgrade()
        return peer

    peer = socket

    def greeted(self, token: str, host_id: str = HOST_ID, **changes: Any) -> tuple[Peer, Any]:
        """A connection after its hello, and the answer."""
        peer = self.socket()
        peer.say(wire.hello(token, host_id, **changes))
        [answer, *rest] = peer.frames()
        if rest:
            peer.transport.write(b"".join(_raw(one) for one in rest))
        return peer, answer.json

    def enrolled(self, host_id: str = HOST_ID) -> str:
        """The long-lived token of a host that has enrolled and gone."""
        peer, answer = self.greeted(self.issued(f"host-{host_id}", host_id), host_id)
        peer.lost()
        return str(answer["result"]["rotated_token"])

    def joined(self, host_id: str = HOST_ID, **changes: Any) -> Peer:
        """A connection of a host that has enrolled before, active."""
        peer, answer = self.greeted(self.enrolled(host_id), host_id, **changes)
        self.assertIn("result", answer)
        return peer

    def issued(self, name: str = "testhost", host_id: str | None = HOST_ID) -> str:
        """A one-time token."""
        return str(self.result(self.fleet.issue(name, host_id, None)).token)

    def refusal(self, answer: Any) -> int:
        """The code of an error."""
        return int(answer["error"]["code"])

    def stored(self) -> list[int]:
        """The seqs of all entries of all hosts, in the order in which they were stored."""
        return [entry.seq for entry in self.entries()]

    def entries(self) -> list[Any]:
        """All entries."""
        return list(self.successResultOf(self.store.tail(EntryFilter(), 0, 100_000)).entries)

    def gaps(self) -> list[tuple[int, int]]:
        """The seqs that were lost."""
        return [(gap.first, gap.last) for gap in self.successResultOf(self.store.gaps(HOST_ID))]

    def written(self) -> Any:
        """The host's row, once what was seen of it is written."""
        self.successResultOf(self.fleet.flush_presence())
        return self.row()

    def ended(self, peer: Peer, code: int) -> list[Frame]:
        """The last frame is a close with this code; answers those before it."""
        return self.assertClosed(peer, code)


def _raw(one: Frame) -> bytes:
    head = bytes([0x80 | one.opcode, len(one.payload)])
    assert len(one.payload) < 126 and one.opcode in (PING, PONG, CLOSE)
    return head + one.payload
