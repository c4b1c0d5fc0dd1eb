"""Flat requests of deployed peers mean what the frames mean."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from cortextx.core import exchange as x
from cortextx.interaction import flat, v1
from cortextx.interaction.faults import RequestFault

FLAT = x.Origin("flat")


class FlatRequestTests(SynchronousTestCase):
    def test_each_op_means_a_request(self) -> None:
        for text, request in [
            (
                b'{"op":"send","id":"1","session":"s","scope":"shared","cwd":"/a","input":"hi"}',
                v1.Input("1", "s", "shared", "hi", FLAT, cwd="/a"),
            ),
            (b'{"op":"send","input":""}', v1.Input("fresh", "default", "private", "", FLAT)),
            (b'{"op":"resume","session":"s","after":"7"}', v1.Resume("fresh", "s", "7")),
            (b'{"op":"resume"}', v1.Resume("fresh", "default", None)),
            (b'{"op":"status","session":null,"x":1}', v1.Status("fresh", "default")),
            (b'{"op":"status","agent":"a"}', v1.Status("fresh", "default", "a")),
            (b'{"op":"cancel","id":"run-1"}', v1.Cancel("fresh", "run-1")),
        ]:
            parsed = flat.parse(text)
            assert not isinstance(parsed, flat.Ping)
            self.assertEqual(flat.as_request(parsed, "fresh"), request)
        self.assertEqual(flat.parse(b'{"op":"ping"}'), flat.Ping())

    def test_a_ping_is_answered_by_a_line_that_clients_skip(self) -> None:
        self.assertIsNone(v1.decode_reply(flat.PONG, "r"))

    def test_a_bad_request_is_einval(self) -> None:
        for text in [
            b"[]",
            b"{}",
            b'{"op":5}',
            b'{"op":"frobnicate"}',
            b'{"op":"ping"}{}',
            b'{"op":"send"}',
            b'{"op":"send","input":"a\\u0000"}',
            b'{"op":"send","input":"","id":"a b"}',
            b'{"op":"send","input":"","id":""}',
            b'{"op":"send","input":"","session":"a/b"}',
            b'{"op":"send","input":"","session":"a\\n"}',
            b'{"op":"send","input":"","scope":"all"}',
            b'{"op":"resume","after":""}',
            b'{"op":"cancel"}',
            b'{"op":"status","x":1e400}',
        ]:
            fault = self.assertRaises(RequestFault, flat.parse, text)
            self.assertEqual(fault.errno, "EINVAL")

    def test_a_directory_is_absolute_and_plain(self) -> None:
        long = "/" + "a" * 1000
        for path in ("/", "/a/..b/c..", "/é", long):
            self.assertTrue(flat.is_plain_path(path), path)
            parsed = flat.parse(b'{"op":"send","input":"","cwd":"%s"}' % path.encode())
            assert isinstance(parsed, flat.Send)
            self.assertEqual(
                flat.as_request(parsed, "r"),
                v1.Input("r", "default", "private", "", FLAT, cwd=path),
            )
        for path in ("", "a", "./a", "/..", "/a/../b", "/a\n", "/\x7f"):
            self.assertFalse(flat.is_plain_path(path), path)
            for name in (b"cwd", b"workspace"):
                text = b'{"op":"send","input":"","%s":"%s"}'
                text %= name, path.replace("\n", "\\n").encode()
                self.assertRaises(RequestFault, flat.parse, text)
