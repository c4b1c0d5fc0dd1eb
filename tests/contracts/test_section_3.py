"""§3, the auth handshake: one test a statement."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from blake3 import blake3
from twisted.logger import capturedLogs

from tests import wire
from tests.contracts import examples
from tests.contracts.served import HOST_ID, OTHER_ID, ContractCase
from tests.wire import CLOSE, TEXT


class Handshake(ContractCase):
    def test_s3_2_five_seconds_then_4000_without_a_message(self) -> None:
        """Without a complete hello the connection is closed with 4000 after 5 s, in silence."""
        peer = self.socket()
        peer.send(wire.text(wire.hello(self.issued()))[:-1])
        self.clock.advance(4.99)
        self.assertEqual(peer.frames(), [])
        self.clock.advance(0.02)
        self.assertEqual(self.ended(peer, 4000), [])

    def test_s3_2_no_row_changes_before_a_good_hello(self) -> None:
        """Silence, garbage and refused hellos leave every row as it was."""
        token = self.enrolled()
        self.written()
        before = self.store.snapshot()
        for message in (
            None,
            [],
            wire.request(1, "logs.push", examples.push(1)),
            wire.hello("x" * 43),
            wire.hello(token, protocol_version=2),
            wire.hello(token, extra=1),
            wire.hello(token, OTHER_ID),
        ):
            peer = self.socket()
            if message is None:
                self.clock.advance(6.0)
            else:
                peer.say(message)
            self.assertEqual(peer.frames()[-1].opcode, CLOSE)
            peer.lost()
            self.written()
            self.assertEqual(self.store.snapshot(), before)

    def test_s3_3_the_first_frame_is_the_hello(self) -> None:
        """Any other method first is -32000 and 4001, known or not, and is not carried out."""
        for message in (
            wire.request(3, "logs.push", examples.push(1)),
            wire.request(3, "metrics.push", examples.METRICS),
            wire.request(3, "no.such", {}),
            {"jsonrpc": "2.0", "method": "agent.heartbeat", "params": examples.HEARTBEAT},
            {"jsonrpc": "2.0", "id": 3, "result": {}},
        ):
            peer = self.socket()
            peer.say(message)
            [error] = self.ended(peer, 4001)
            self.assertEqual(self.refusal(error.json), -32000, message)
        self.assertEqual(self.stored(), [])

    def test_s3_4_the_order_of_checks(self) -> None:
        """Envelope, then versions, then shape, then the token: the first fault answers."""
        bad_token = "x" * 43
        no_shape = {"protocol_version": 2, "token": 5}
        for message, code in (
            ({"id": 1, "method": "agent.hello", "params": no_shape}, -32600),
            (wire.request(1, "agent.hello", no_shape), -32003),
            (wire.hello(bad_token, protocol_version=2), -32003),
            (wire.hello(bad_token, hostname=""), -32602),
            (wire.hello(bad_token), -32001),
        ):
            peer = self.socket()
            peer.say(message)
            [error] = self.ended(peer, 4001)
            self.assertEqual(self.refusal(error.json), code)

    def test_s3_4_a_revoked_host_is_32002_and_4002(self) -> None:
        """A revoked row is told so, whatever the token (F8)."""
        token = self.enrolled()
        self.result(self.fleet.revoke(HOST_ID))
        for sent in (token, "x" * 43):
            peer = self.socket()
            peer.say(wire.hello(sent))
            [error] = self.ended(peer, 4002)
            self.assertEqual(self.refusal(error.json), -32002)

    def test_s3_4_the_previous_hash_is_compared_too(self) -> None:
        """Within the grace the replaced token is still good (F7)."""
        token = self.enrolled()
        self.result(self.fleet.rotate(HOST_ID, False, None))
        self.greeted(token)
        _, again = self.greeted(token)
        self.assertIn("rotated_token", again["result"])

    def test_s3_5_success(self) -> None:
        """The result is as §4.1 has it; the row is active, with now and the session's id."""
        token = self.enrolled()
        self.clock.advance(77.0)
        peer, answer = self.greeted(token)
        result = answer["result"]
        row = self.row()
        self.assertEqual((row.state, row.last_handshake), ("active", self.fleet.wall()))
        self.assertEqual(row.session_id, result["session_id"])
        self.assertEqual(str(UUID(result["session_id"])), result["session_id"])
        self.assertEqual((result["accepted_seq"], result["server_version"]), (0, "0.1.0"))
        self.assertIn("result", peer.push(1))

    def test_s3_2_the_row_follows_the_connection(self) -> None:
        """The peer's address is recorded with a good hello, the end and its cause with the
        end; both of the newest session only."""
        token = self.enrolled()
        peer, _ = self.greeted(token)
        row = self.written()
        self.assertEqual((row.state, row.hostname), ("active", "testhost"))
        self.assertIsNotNone(row.remote_address)
        peer.send(wire.frame(CLOSE, b"\x03\xe8"))
        peer.frames()
        peer.lost()
        row = self.written()
        self.assertEqual(row.state, "disconnected")
        self.assertIn("1000", row.last_disconnect_reason)
        older, _ = self.greeted(token)
        self.greeted(token)
        older.lost()
        self.assertEqual(self.written().state, "active")

    def test_s3_5_each_session_has_an_id_of_its_own(self) -> None:
        """Two handshakes of one host give two session ids."""
        token = self.enrolled()
        ids = {self.greeted(token)[1]["result"]["session_id"] for _ in range(5)}
        self.assertEqual(len(ids), 5)

    def test_s3_5_a_one_time_token_is_replaced_at_once(self) -> None:
        """The first hello gets the long-lived token; only its BLAKE3 is kept, no grace."""
        one_time = self.issued()
        _, answer = self.greeted(one_time)
        fresh = answer["result"]["rotated_token"]
        row = self.row()
        self.assertEqual(row.token_hash, blake3(fresh.encode()).digest())
        self.assertEqual((row.token_hash_prev, row.state), (None, "active"))
        _, again = self.greeted(one_time)
        self.assertEqual(self.refusal(again), -32001)
        self.assertIn("result", self.greeted(fresh)[1])

    def test_s3_5_a_long_lived_token_stays(self) -> None:
        """A reconnect gets no rotated_token, and the hash is the same."""
        token = self.enrolled()
        before = self.row().token_hash
        for _ in range(3):
            self.assertIsNone(self.greeted(token)[1]["result"].get("rotated_token"))
        self.assertEqual(self.row().token_hash, before)

    def test_s3_6_f4_one_error_then_the_close(self) -> None:
        """Every refused hello gets exactly one error and a close, and nothing after it."""
        for message in (
            wire.hello("x" * 43),
            wire.hello("x" * 43, protocol_version=0),
            wire.hello("short"),
            {"jsonrpc": "2.0", "id": None, "method": "agent.hello", "params": {}},
        ):
            peer = self.socket()
            peer.say(message)
            found = peer.frames()
            self.assertEqual([one.opcode for one in found], [TEXT, CLOSE])
            peer.say(wire.hello(self.issued()))
            self.clock.advance(30.0)
            self.assertEqual(peer.frames(), [])

    def test_s3_6_f4_text_that_is_no_json_is_32700_and_4001(self) -> None:
        """A first message that is not JSON gets -32700 with a null id, then 4001."""
        peer = self.socket()
        peer.text(b'{"jsonrpc":')
        [error] = self.ended(peer, 4001)
        self.assertEqual((error.json["id"], self.refusal(error.json)), (None, -32700))

    def test_s3_f23_tokens_are_never_logged(self) -> None:
        """No token shows in a log of enrolment, refusal and rotation, nor in a repr."""
        secrets: list[str] = []
        with capturedLogs() as logs:
            one_time = self.issued()
            _, answer = self.greeted(one_time)
            secrets += [one_time, answer["result"]["rotated_token"]]
            self.greeted(one_time)
            self.greeted(one_time, hostname="")
            self.result(self.fleet.rotate(HOST_ID, False, None))
            secrets.append(self.greeted(secrets[1])[1]["result"]["rotated_token"])
        shown = repr(logs) + repr(self.store.snapshot()) + repr(self.row())
        for secret in secrets:
            self.assertNotIn(secret, shown)


class Floor(ContractCase):
    table: dict[str, Any] = {"min_agent_version": "1.2.0"}

    def test_s3_4_f28_the_floor_of_versions(self) -> None:
        """Below min_agent_version is -32003 and 4001, before the token is looked at."""
        token = self.enrolled_as("1.2.0")
        for version, good in (
            ("1.2.0", True), ("1.2.0+old", True), ("1.10.0", True), ("2.0.0-rc.1", True),
            ("1.1.9", False), ("1.2.0-rc.9", False), ("0.99.0", False),
        ):  # fmt: skip
            peer, answer = self.greeted(token, agent_version=version)
            if good:
                self.assertIn("result", answer, version)
            else:
                self.assertEqual(self.refusal(answer), -32003, version)
                self.ended(peer, 4001)
        _, answer = self.greeted("x" * 43, agent_version="1.0.0")
        self.assertEqual(self.refusal(answer), -32003)

    def enrolled_as(self, version: str) -> str:
        _, answer = self.greeted(self.issued(), agent_version=version)
        return str(answer["result"]["rotated_token"])
