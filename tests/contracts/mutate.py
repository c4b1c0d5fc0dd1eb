"""Malformed messages, made from good ones by a seeded chance."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

from tests import wire
from tests.contracts import examples

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**63, 2**70, -(2**63) - 1, 1.5, 1e308,
    -0.0, "", "x", "\x00", "\ufeff", "é日😀", "x" * 300, "\u202e", [], {}, [[]], {"": {}}, [None],
    "2026-08-09T06:30:00", "0000-00-00T00:00:00Z", "2.0", "logs.push",
)  # fmt: skip
"""Values to stand where others are expected."""
PIECES: tuple[bytes, ...] = (
    b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\\u0000", b"\\ud800", b"\\udc00", b"\\x",
    b"1e400", b"-", b"NaN", b"Infinity", b"0123", b"\x00", b"\x7f", b"\xff", b"\xc3", b"\xf0\x9f",
    b"\xed\xa0\x80", b"\xef\xbb\xbf", b"null", b"true", b"[" * 200, b'{"a":' * 120, b" " * 50,
    b'"jsonrpc":"2.0"', b'"id":1,"id":2', b'"method":"agent.hello"',
)  # fmt: skip
"""Bytes to be put anywhere."""


def good_messages() -> list[Any]:
    """One good message of each kind that an agent may send, and of those that only a server may."""
    messages = [
        wire.request(n, method, params)
        for n, (method, params) in enumerate(examples.PARAMS.items(), 1)
    ]
    messages += [
        {"jsonrpc": "2.0", "method": method, "params": params}
        for method, params in examples.PARAMS.items()
    ]
    messages += [
        {"jsonrpc": "2.0", "id": 1, "result": examples.RESULTS["probe.request"]},
        {"jsonrpc": "2.0", "id": 3, "error": {"code": -32011, "message": "", "data": {"a": 1}}},
        {"jsonrpc": "2.0", "id": 7, "result": examples.RESULTS["probe.request"]},
        {"jsonrpc": "2.0", "id": 7, "error": {"code": -32012, "message": "ProbeTimeout"}},
        wire.request("many", "logs.push", examples.push(1, 20)),
    ]
    return messages


class Mutator:
    """Answers malformed payloads without end; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)
        self._good = good_messages()

    def payload(self) -> bytes:
        """One message that is, almost always, broken in some way."""
        chance = self._chance
        message = copy.deepcopy(chance.choice(self._good))
        for _ in range(chance.randint(0, 3)):
            message = self._changed(message)
        payload = json.dumps(message, ensure_ascii=chance.random() < 0.5).encode(
            "utf-8", "surrogatepass"
        )
        for _ in range(chance.choice((0, 0, 1, 1, 2, 5))):
            payload = self._broken(payload)
        return payload

    def noise(self, most: int = 200) -> bytes:
        """Random bytes."""
        return self._chance.randbytes(self._chance.randint(1, most))

    def frame(self) -> bytes:
        """A message in a frame, which is broken now and then."""
        chance = self._chance
        built = wire.frame(
            chance.choice((1, 1, 1, 1, 1, 2, 0, 9, 8, 3)),
            self.payload(),
            fin=chance.random() < 0.8,
            rsv=chance.choice((0, 0, 0, 0, 0, 0, 4)),
        )
        return self._broken(built) if chance.random() < 0.3 else built

    def _odd(self) -> Any:
        return copy.deepcopy(self._chance.choice(ODD))

    def _changed(self, value: Any) -> Any:
        """The value with one place, anywhere in it, made odd."""
        chance = self._chance
        inner = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not isinstance(value, dict | list) or not inner:
            return self._odd()
        place = chance.choice(inner)
        match chance.randint(0, 5):
            case 0:
                del value[place]
            case 1:
                value[place] = self._odd()
            case 2 if isinstance(value, dict):
                value[chance.choice(("novel", "id", "seq", "", "token"))] = self._odd()
            case 2:
                value += copy.deepcopy(value[:1]) * chance.randint(1, 1100)
            case _ if isinstance(value[place], dict | list):
                value[place] = self._changed(value[place])
            case _:
                value[place] = self._odd()
        return value

    def _broken(self, payload: bytes) -> bytes:
        chance = self._chance
        at = chance.randint(0, len(payload))
        match chance.randint(0, 5):
            case 0:
                return payload[:at]
            case 1:
                return payload[at:]
            case 2:
                return payload[:at] + chance.choice(PIECES) + payload[at:]
            case 3:
                flipped = bytes([chance.randint(0, 255)])
                return payload[:at] + flipped + payload[at + 1 :]
            case 4:
                end = chance.randint(at, min(len(payload), at + 40))
                return payload[:at] + payload[end:]
            case _:
                end = chance.randint(at, min(len(payload), at + 40))
                return payload[:end] + payload[at:]
