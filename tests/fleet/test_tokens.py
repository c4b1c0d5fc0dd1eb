"""The life of a token (F5–F8, F29): single decisions, and early test 2 of the design.

The walk issues, enrols, loses replies, rotates, stays offline, restores the
registry and issues anew, at random under a Clock: a host that is alive and was
not revoked never ends fatal.
"""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from cortextx.fleet.contract import Capabilities, CloseCode, Code, HelloParams, Platform
from cortextx.fleet.server.tokens import (
    Accepted,
    Mint,
    Refused,
    TokenPolicy,
    Verdict,
    hash_token,
    judge_hello,
    revoked,
    rotation_asked,
)
from cortextx.interfaces.fleet import Candidates, HostRecord
from cortextx.stores.memory import MemoryStore

HOST = "2b9a0b3a-7e3c-4d2a-9c0e-9bbf5d3a1f01"
OTHER = "7d1c2f6e-0d6e-4c39-8c3f-7a54b1f0aa02"
SECOND = 1_000_000
DAY = 86_400 * SECOND
START = 1_778_932_800 * SECOND


def hello(token: str, host_id: str = HOST) -> HelloParams:
    return HelloParams(
        protocol_version=1,
        agent_version="0.1.0",
        hostname="h",
        host_id=host_id,
        platform=Platform(os="linux", arch="x86_64", kernel="6"),
        capabilities=Capabilities(
            supported_probes=[], sources=["file"], max_batch_entries=1000, compression=[]
        ),
        token=token,
    )


class Registry:
    """A MemoryStore, its judge and a wall clock, as a server puts them together."""

    def __init__(self, seed: int = 0) -> None:
        self.clock = Clock()
        self.store = MemoryStore()
        self.mint = Mint(random.Random(seed).randbytes)
        self.policy = TokenPolicy(rotation_grace=300.0)

    @property
    def wall(self) -> int:
        return START + round(self.clock.seconds() * SECOND)

    def issue(self, host_id: str | None = None, expires_in: int = DAY) -> str:
        token = self.mint.token()
        d = self.store.issue("h", host_id, hash_token(token), self.wall + expires_in, self.wall)
        assert d.called
        return token

    def hello(self, token: str, host_id: str = HOST) -> Verdict:
        sent = hello(token, host_id)

        def decide(found: Candidates) -> tuple[Verdict, HostRecord | None]:
            return judge_hello(found, sent, self.wall, self.policy, self.mint, "192.0.2.1")

        d = self.store.judge(host_id, hash_token(token), decide)
        verdict: Verdict = d.result
        return verdict

    def enrolled(self, host_id: str = HOST) -> str:
        """A host with its long-lived token."""
        verdict = self.hello(self.issue(), host_id)
        assert isinstance(verdict, Accepted) and verdict.rotated_token is not None
        return verdict.rotated_token

    def rotate(self, expire_in: int | None = None) -> None:
        until = None if expire_in is None else self.wall + expire_in
        self.store.update(HOST, lambda row: rotation_asked(row, until))

    def revoke(self) -> None:
        self.store.update(HOST, revoked)

    def row(self, host_id: str = HOST) -> HostRecord:
        (row,) = self.store.find(host_id).result
        return row


class TokenCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.registry = Registry()

    def accepted(self, token: str, host_id: str = HOST) -> Accepted:
        verdict = self.registry.hello(token, host_id)
        assert isinstance(verdict, Accepted), verdict
        return verdict

    def refused(self, token: str, host_id: str = HOST) -> tuple[Code, CloseCode]:
        verdict = self.registry.hello(token, host_id)
        assert isinstance(verdict, Refused), verdict
        return verdict.code, verdict.close_code

    def fresh(self, token: str) -> str:
        """The hello's rotated token."""
        rotated = self.accepted(token).rotated_token
        assert rotated is not None
        return rotated


AUTH_FAILED = (Code.AUTH_FAILED, CloseCode.AUTH_FAILED)
ROTATION_REQUIRED = (Code.TOKEN_ROTATION_REQUIRED, CloseCode.AUTH_FAILED)


class EnrolmentTests(TokenCase):
    def test_the_first_hello_claims_an_unbound_token(self) -> None:
        """F6: it binds the host_id and gets a long-lived token."""
        one_time = self.registry.issue()
        token = self.fresh(one_time)
        row = self.registry.row()
        self.assertEqual(
            (row.state, row.host_id, row.token_hash), ("active", HOST, hash_token(token))
        )
        self.assertEqual((row.token_hash_prev, row.token_expires_at), (None, None))
        self.assertEqual((row.hostname, row.agent_version), ("h", "0.1.0"))
        self.assertEqual(row.remote_address, "192.0.2.1")
        self.assertIn('"supported_probes":[]', row.capabilities or "")
        self.assertIsNone(self.accepted(token).rotated_token)

    def test_a_one_time_token_is_spent_by_its_first_hello(self) -> None:
        """F29: of two hellos one wins, and the same host has no grace either (§3.5)."""
        one_time = self.registry.issue()
        self.accepted(one_time)
        self.assertEqual(self.refused(one_time, OTHER), AUTH_FAILED)
        self.assertEqual(self.refused(one_time), AUTH_FAILED)

    def test_a_bound_token_is_for_its_host_only(self) -> None:
        """F6."""
        one_time = self.registry.issue(HOST)
        self.assertEqual(self.refused(one_time, OTHER), AUTH_FAILED)
        self.fresh(one_time)

    def test_a_one_time_token_expires(self) -> None:
        """F6."""
        unbound, bound = self.registry.issue(), self.registry.issue(OTHER)
        self.registry.clock.advance(86_400)
        self.assertEqual(self.refused(unbound), AUTH_FAILED)
        self.assertEqual(self.refused(bound, OTHER), AUTH_FAILED)

    def test_an_unbound_token_never_takes_a_host_over(self) -> None:
        """F29: and it is not spent by the attempt."""
        token = self.registry.enrolled()
        unbound = self.registry.issue()
        self.assertEqual(self.refused(unbound), AUTH_FAILED)
        self.accepted(token)
        self.accepted(unbound, OTHER)

    def test_unknown_host_and_wrong_token_are_told_apart_by_nothing(self) -> None:
        """F5."""
        self.registry.enrolled()
        wrong = self.registry.hello("w" * 43)
        unknown = self.registry.hello("w" * 43, OTHER)
        self.assertEqual(wrong, unknown)
        assert isinstance(wrong, Refused)
        self.assertEqual(wrong.code, Code.AUTH_FAILED)
        self.assertEqual(wrong.data, {"reason": "token_hash_mismatch"})

    def test_an_issued_again_host_enrols_anew_and_keeps_its_seq(self) -> None:
        """F29: the old token works until the new one is spent, then never again."""
        old = self.registry.enrolled()
        self.registry.store.update(HOST, lambda row: replace(row, accepted_seq=42))
        one_time = self.registry.issue(HOST)
        self.assertIsNone(self.accepted(old).rotated_token)
        self.assertEqual(self.registry.row().state, "never_connected")
        verdict = self.accepted(one_time)
        self.assertEqual(verdict.accepted_seq, 42)
        self.assertEqual(self.refused(old), AUTH_FAILED)
        self.accepted(verdict.rotated_token or "")

    def test_an_issue_that_nobody_used_bricks_nobody(self) -> None:
        old = self.registry.enrolled()
        one_time = self.registry.issue(HOST)
        self.registry.clock.advance(10 * 86_400)
        self.assertEqual(self.refused(one_time), AUTH_FAILED)
        self.accepted(old)


class RotationTests(TokenCase):
    def test_a_rotation_waits_for_the_host_however_long(self) -> None:
        """F7."""
        old = self.registry.enrolled()
        self.registry.rotate()
        self.registry.clock.advance(90 * 86_400)
        new = self.fresh(old)
        self.assertNotEqual(new, old)
        row = self.registry.row()
        self.assertFalse(row.rotation_pending)
        self.assertEqual(row.prev_expires_at, self.registry.wall + 300 * SECOND)
        self.assertIsNone(self.accepted(new).rotated_token)

    def test_a_lost_reply_is_made_good_within_the_grace(self) -> None:
        """F7: each delivery gives another fresh token and a grace of its own."""
        old = self.registry.enrolled()
        self.registry.rotate()
        lost = [self.fresh(old)]
        for _ in range(5):
            self.registry.clock.advance(299)
            lost.append(self.fresh(old))
        self.assertEqual(len(set(lost)), 6)
        self.accepted(lost[-1])
        self.assertEqual(self.refused(lost[0]), AUTH_FAILED)

    def test_the_first_hello_with_the_new_token_ends_the_grace(self) -> None:
        """F7."""
        old = self.registry.enrolled()
        self.registry.rotate()
        self.accepted(self.fresh(old))
        self.assertEqual(self.refused(old), ROTATION_REQUIRED)

    def test_after_the_grace_the_replaced_token_is_for_diagnosis_only(self) -> None:
        """F7: -32005, 4001."""
        old = self.registry.enrolled()
        self.registry.rotate()
        new = self.fresh(old)
        self.registry.clock.advance(300)
        self.assertEqual(self.refused(old), ROTATION_REQUIRED)
        self.accepted(new)

    def test_a_token_that_was_told_to_expire_is_good_until_then(self) -> None:
        """F7: rotate --expire-in; a delivery before that is cut short by it too."""
        old = self.registry.enrolled()
        self.registry.rotate(expire_in=100 * SECOND)
        self.registry.clock.advance(50)
        self.fresh(old)
        self.registry.clock.advance(40)
        new = self.fresh(old)
        self.registry.clock.advance(10)
        self.assertEqual(self.refused(old), ROTATION_REQUIRED)
        self.accepted(new)
        self.registry.rotate(expire_in=0)
        self.assertEqual(self.refused(new), ROTATION_REQUIRED)

    def test_a_second_rotation_in_the_grace_strands_neither_token(self) -> None:
        for holds_new in (True, False):
            self.registry = Registry()
            old = self.registry.enrolled()
            self.registry.rotate()
            new = self.fresh(old)
            self.registry.rotate()
            self.fresh(new if holds_new else old)


class RevocationTests(TokenCase):
    def test_a_revoked_host_is_told_so_whatever_it_sends(self) -> None:
        """F8: -32002, 4002, also with an old, a wrong or an unbound token."""
        old = self.registry.enrolled()
        self.registry.rotate()
        new = self.fresh(old)
        self.registry.revoke()
        row = self.registry.row()
        self.assertEqual((row.token_hash, row.token_hash_prev), (None, None))
        for token in (old, new, "w" * 43, self.registry.issue()):
            self.assertEqual(self.refused(token), (Code.TOKEN_REVOKED, CloseCode.TOKEN_REVOKED))

    def test_a_rotation_revives_no_revoked_host(self) -> None:
        self.registry.enrolled()
        self.registry.revoke()
        self.registry.rotate()
        self.assertEqual(self.registry.row().state, "revoked")

    def test_a_revoked_host_may_be_issued_again(self) -> None:
        """F29: the old token stays worthless, but it is a wrong one now, not a revoked one."""
        old = self.registry.enrolled()
        self.registry.revoke()
        one_time = self.registry.issue(HOST)
        self.assertEqual(self.refused(old), AUTH_FAILED)
        self.accepted(self.fresh(one_time))


class SecrecyTests(TokenCase):
    def test_no_token_and_no_hash_shows_in_a_repr(self) -> None:
        """F23."""
        one_time = self.registry.issue()
        verdict = self.accepted(one_time)
        shown = repr(verdict) + repr(self.registry.row()) + repr(hello(one_time))
        for secret in (one_time, verdict.rotated_token or "?", repr(hash_token(one_time))):
            self.assertNotIn(secret, shown)

    def test_a_token_is_random_and_long_enough(self) -> None:
        """F6, §4.1: 32 bytes, base64url."""
        tokens = {self.registry.mint.token() for _ in range(50)}
        self.assertEqual(len(tokens), 50)
        for token in tokens:
            self.assertRegex(token, r"\A[A-Za-z0-9_-]{43}\Z")
        self.assertEqual(len(hash_token("x")), 32)


class Host:
    """An agent's side of the walk: its token and the one before, stored before anything
    else (§3.5, A56)."""

    def __init__(self) -> None:
        self.token = ""
        self.previous = ""
        self.alive = False
        """Whether it holds a long-lived token that the server gave it."""
        self.owed = False
        """Whether a rotation was delivered to it that it never got."""

    def connects(self, registry: Registry, *, reply_lost: bool) -> Code | None:
        used, other = self.token, self.previous
        verdict = registry.hello(used)
        if isinstance(verdict, Refused) and verdict.code == Code.AUTH_FAILED and other:
            used, other = other, used
            verdict = registry.hello(used)
        if isinstance(verdict, Refused):
            return verdict.code
        if verdict.rotated_token is None:
            if not reply_lost:
                self.token, self.previous = used, other
            return None
        if reply_lost:
            self.owed = self.alive
            # A one-time token is spent by then: the host must be issued again.
            self.token = self.token if self.alive else ""
            return None
        self.token, self.previous = verdict.rotated_token, used
        self.alive, self.owed = True, False
        return None


def known(row: HostRecord, token: str, wall: int) -> bool:
    """Whether a registry as it stands vouches for a token."""
    digest = hash_token(token)
    if row.state == "never_connected":
        return digest == row.token_hash_prev
    in_grace = row.prev_expires_at is not None and wall < row.prev_expires_at
    return digest == row.token_hash or (in_grace and digest == row.token_hash_prev)


class TokenWalkTests(SynchronousTestCase):
    """Early test 2 of the design."""

    @settings(max_examples=150, deadline=None)
    @given(st.integers(0, 2**32))
    @example(384)
    def test_a_live_host_never_ends_fatal(self, seed: int) -> None:
        """F6, F7, F29, F34.

        A backup from before the last rotation is no matter: the host still has the
        token of then (A56). One that is older cannot vouch for it: that host waits
        (never with -32002, which would have it delete its token) until it is
        issued again, and goes on from its accepted_seq. While a delivery is lost
        the host is back within the grace, as its backoff ends at 60 s.
        """
        chance = random.Random(seed)
        registry = Registry(seed)
        host = Host()
        backups = []
        host.token = registry.issue()
        seq = 0
        for _ in range(80):
            step = chance.choice(
                ["hello", "hello", "lost", "rotate", "wait", "offline", "backup", "restore",
                 "reissue", "reissue unused", "revoke"]
            )  # fmt: skip
            if step in ("hello", "lost") and host.token:
                code = host.connects(registry, reply_lost=step == "lost")
                self.assertIsNone(code, f"{seed}: a live host got {code}")
                registry.store.update(HOST, lambda row, to=seq: replace(row, accepted_seq=to))
            elif step == "rotate" and host.alive:
                registry.rotate()
            elif step == "wait":
                registry.clock.advance(chance.choice([1, 30, 59]))
                if host.owed:
                    self.assertIsNone(host.connects(registry, reply_lost=chance.random() < 0.5))
            elif step == "offline" and not host.owed and host.alive:
                registry.clock.advance(chance.choice([301, 3_600, 40 * 86_400]))
            elif step == "backup" and host.alive:
                backups.append(registry.store.snapshot())
            elif step == "restore" and backups:
                registry.store.restore(chance.choice(backups))
                row = registry.row()
                seq = row.accepted_seq
                if row.state == "revoked":
                    self.enrol_anew(registry, host)
                elif not known(row, host.token, registry.wall):
                    # A refusal changes nothing, so that it may be asked for twice.
                    verdict = registry.hello(host.token)
                    assert isinstance(verdict, Refused)
                    held = bool(host.previous) and known(row, host.previous, registry.wall)
                    code = host.connects(registry, reply_lost=False)
                    if verdict.code == Code.AUTH_FAILED and held:
                        self.assertIsNone(code, f"{seed}: it has the token of that backup")
                    else:
                        self.assertIn(code, (Code.AUTH_FAILED, Code.TOKEN_ROTATION_REQUIRED))
                        self.enrol_anew(registry, host)
                row = registry.row()
                behind = hash_token(host.token) != row.token_hash
                host.owed = row.state != "never_connected" and behind
            elif step == "reissue" and host.alive:
                self.enrol_anew(registry, host)
            elif step == "reissue unused" and host.alive and not host.owed:
                registry.issue(HOST)
            elif step == "revoke" and host.alive and chance.random() < 0.3:
                registry.revoke()
                self.assertEqual(host.connects(registry, reply_lost=False), Code.TOKEN_REVOKED)
                self.enrol_anew(registry, host)
            elif not host.token:
                self.enrol_anew(registry, host)
            seq += 1

    def enrol_anew(self, registry: Registry, host: Host) -> None:
        """What an operator does: agent issue --host-id, agent enroll."""
        bound = bool(registry.store.find(HOST).result)
        before = registry.row().accepted_seq if bound else 0
        host.token, host.previous = registry.issue(HOST), ""
        host.alive = host.owed = False
        self.assertIsNone(host.connects(registry, reply_lost=False))
        self.assertTrue(host.alive)
        self.assertEqual(registry.row().accepted_seq, before)

    def test_a_lost_reply_and_an_outage_beyond_the_grace_need_a_new_issue(self) -> None:
        """F7's own end: the previous hash is for diagnosis only then."""
        registry, host = Registry(), Host()
        host.token = registry.enrolled()
        host.alive = True
        registry.rotate()
        host.connects(registry, reply_lost=True)
        registry.clock.advance(301)
        self.assertEqual(host.connects(registry, reply_lost=False), Code.TOKEN_ROTATION_REQUIRED)
        self.enrol_anew(registry, host)
