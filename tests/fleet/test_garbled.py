"""To which request an answer belongs that cannot be read."""

from __future__ import annotations

from cortextx.fleet.contract import Code
from cortextx.fleet.server.actions import ProbeDone, Send
from cortextx.fleet.server.garbled import answered_id
from cortextx.fleet.server.probes import ProbeCall, ProbeFailure
from cortextx.fleet.server.tokens import Accepted
from tests.fleet.session_case import HOST, SESSION, WALL, SessionCase, hello, text

CALL = ProbeCall("fs.disk_usage", b"{}", 5000)


class Ids(SessionCase):
    def test_answers(self) -> None:
        """The id at the top, wherever it stands, of what has a result or an error."""
        for payload in (
            b'{"jsonrpc":"2.0","id":7,"result":{"output":{"x":1e999}}}',
            b'{"result":{"id":8,"a":["]",{"id":9}]},"error":{},"id": 7 }',
            b'{"id":7,"error":{"code":1,"message":"\xff"',
            b'{"id" : 7 , "result": "cut of',
            b'{"id":7,"result":{"output":' + b"[" * 200,
            b'{"error":"\\"{", "id":7}',
        ):
            self.assertEqual(answered_id(payload), 7, payload)

    def test_all_else(self) -> None:
        """Pushes, what is cut off before its id, and what is no object of ours."""
        for payload in (
            b"", b"{", b"7", b'"id":7', b'{"id":7}', b'{"id":7,"method":"logs.push","result":1}',
            b'{"id":"7","result":1}', b'{"id":7.5,"result":1}', b'{"result":{"id":7}',
            b'[{"id":7,"result":1}]', b'{"a":{}}{"id":7,"result":1}', b'{"result":"id:7,"id',
            b'{"id":-7,"result":1}', b'{"result":{"x":1,"id":7}}',
        ):  # fmt: skip
            self.assertIsNone(answered_id(payload), payload)

    def test_it_looks_no_further_than_it_must(self) -> None:
        """Of a thousand brackets or a million only the first few thousand are looked at."""
        nested = b'{"result":' + b"[]," * 1000 + b'0,"id":7}'
        self.assertEqual(answered_id(nested), 7)
        self.assertIsNone(answered_id(b'{"result":' + b"[]," * 300_000 + b'0,"id":7}'))
        for size, found in ((10_000, 7), (20_000, None)):
            payload = b'{"result":"' + b"\\a" * size + b'","id":7}'
            self.assertEqual(answered_id(payload), found, "one long text is no way around")

    def test_it_takes_no_time(self) -> None:
        """A text without an end is looked at once: a million characters are nothing."""
        for payload in (b'{"id":1,"result":"' + b'\\"' * 500_000, b'"' * 999_999 + b"\\"):
            answered_id(payload)


class Ending(SessionCase):
    def test_a_probe_ends_at_once(self) -> None:
        """§4.7: as failed, with what was wrong; its slot is free, and no push is refused."""
        session = self.make()
        session.opened(0.0)
        session.text_received(hello(), 0.0, WALL)
        session.hello_judged(Accepted(HOST, 0, SESSION), 0.0, WALL)
        for number, payload in enumerate(
            (
                b'{"jsonrpc":"2.0","id":1,"result":{"output":{"x":1e999},"duration_ms":1}',
                b'{"jsonrpc":"1.0","id":2,"result":{}}',
                b'{"jsonrpc":"2.0","id":3,"result":{},"error":{"code":1,"message":"x"}}',
            ),
            1,
        ):
            session.probe_asked(number, CALL, 1.0)
            actions = session.text_received(payload, 2.0, WALL)
            [done] = [one for one in actions if isinstance(one, ProbeDone)]
            assert isinstance(done.outcome, ProbeFailure)
            self.assertEqual((done.key, done.outcome.code), (number, Code.INTERNAL_ERROR))
            self.assertEqual(done.outcome.reason, "the answer cannot be read")
            self.assertFalse([one for one in actions if isinstance(one, Send)])
        session.probe_asked(4, CALL, 3.0)
        actions = session.text_received(text({"jsonrpc": "1.0", "id": 9, "result": {}}), 3.0, WALL)
        self.assertFalse([one for one in actions if isinstance(one, ProbeDone)])
