"""The first line of a connection decides what is spoken on it (I5, I28)."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from cortextx.core import exchange as x
from cortextx.interaction import data, flat, v1, v2
from cortextx.interaction.correlation import Correlation
from cortextx.interaction.faults import MAX_FRAME_BYTES
from cortextx.interaction.opening import (
    OpensRequest,
    OpensStream,
    Refused,
    decide,
    refuse_too_long,
)
from tests.interaction.examples import frame, line, requests, wire

HELLO = frame(data.Hello((v2.ABI,)))


class OpeningTests(SynchronousTestCase):
    def test_a_hello_opens_a_stream(self) -> None:
        for text in (v2.encode(HELLO), b"\r \t" + v2.encode(HELLO)):
            self.assertEqual(decide(text), OpensStream(HELLO, data.Hello((v2.ABI,))))

    @settings(max_examples=40, deadline=None)
    @given(requests)
    def test_a_v1_frame_is_the_one_request(self, request: v1.Request) -> None:
        self.assertEqual(decide(v1.encode_request(request)), OpensRequest(request))

    def test_a_flat_line_is_the_one_request(self) -> None:
        self.assertEqual(decide(b'{"op":"ping"}\n'), OpensRequest(flat.Ping()))
        self.assertEqual(decide(b'{"op":"send","input":"i"}\n'), OpensRequest(flat.Send(input="i")))

    def test_a_hello_that_offers_nothing_of_ours_is_told_so(self) -> None:
        for versions in ([], ["cortexfs.interaction/v9"]):
            hello = v2.encode(frame(data.Hello(tuple(versions))))
            error = self.error(decide(hello))
            self.assertEqual(error.code, "unsupported_version")

    def test_a_v2_frame_that_is_no_good_hello_is_told_on_the_connection(self) -> None:
        spoilt = wire(data.Hello((v2.ABI,)))
        spoilt["event"]["capabilities"] = []
        versions = wire(data.Hello())
        versions["event"]["data"]["versions"] = 5
        for text in [
            v2.encode(frame(data.Attach("a", "private"))),
            v2.encode(frame(data.DEFAULT_LIMITS)),
            line(spoilt),
            line(versions),
        ]:
            self.assertEqual(self.error(decide(text)).code, "bad_frame")

    def test_a_v2_frame_that_names_no_connection_is_not_answered(self) -> None:
        spoilt = wire(data.Hello((v2.ABI,)))
        spoilt["correlation"] = {"connection_id": ""}
        refused = decide(line(spoilt))
        assert isinstance(refused, Refused)
        self.assertEqual(refused.answer, b"")

    def test_a_bad_v1_request_is_answered_in_its_form(self) -> None:
        text = v1.encode_request(v1.Status("r", "s")).replace(b'"session":"s"', b'"session":5')
        refused = decide(text, "framed")
        assert isinstance(refused, Refused)
        failure = v1.decode(refused.answer)
        assert isinstance(failure, x.Failure)
        self.assertEqual((failure.request_id, failure.code), ("r", "EINVAL"))
        self.assertFlatError(decide(b'{"op":"send"}\n'), "EINVAL")
        self.assertFlatError(decide(b'{"abi":"cortexfs.interaction/v1"}\n'), "EINVAL")

    def test_garbage_that_begins_with_a_brace_gets_a_flat_error_and_other_garbage_none(
        self,
    ) -> None:
        """I28."""
        for text in (b"{\n", b"{}\n", b'{"abi":5}\n', b'{"abi":"x/v3","op":"ping"}\n', b"{\xff}\n"):
            self.assertFlatError(decide(text), "EINVAL")
        for text in (b"\n", b"GET / HTTP/1.1\r\n", b"[]\n", b"null\n", b"\xff{\n", b"", b"\x16\n"):
            refused = decide(text)
            assert isinstance(refused, Refused)
            self.assertEqual(refused.answer, b"")

    def test_a_line_beyond_the_bound_is_emsgsize(self) -> None:
        """I22; whether its newline came or not."""
        flood = b"{" + b"a" * MAX_FRAME_BYTES
        self.assertFlatError(decide(flood + b"\n"), "EMSGSIZE")
        self.assertFlatError(refuse_too_long(flood), "EMSGSIZE")
        self.assertEqual(refuse_too_long(b"aaaa").answer, b"")

    @settings(max_examples=100, deadline=None)
    @given(st.binary(max_size=40))
    def test_whatever_comes_is_decided(self, text: bytes) -> None:
        for line_ in (text, b"{" + text + b"\n", v2.encode(HELLO)[:-1] + text + b"\n"):
            if isinstance(opening := decide(line_), Refused):
                self.assertIn(opening.answer.count(b"\n"), (0, 1))

    def error(self, opening: object) -> data.Error:
        assert isinstance(opening, Refused)
        answer = v2.decode(opening.answer, "slave")
        self.assertEqual(answer.correlation, Correlation("con"))
        error = data.read(answer)
        assert isinstance(error, data.Error)
        return error

    def assertFlatError(self, opening: object, code: str) -> None:
        assert isinstance(opening, Refused)
        answer = msgspec.json.decode(opening.answer)
        self.assertEqual((answer["type"], answer["code"]), ("error", code))
        self.assertNotIn("abi", answer)
