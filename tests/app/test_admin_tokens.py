"""The admin socket's ops about API tokens, and the audit of what else is done there (S8)."""

from __future__ import annotations

from typing import Any

from cortextx.app.admin_tokens import TokenOps, audited
from cortextx.app.linesocket import error_of
from cortextx.fleet.server.tokens import hash_token
from tests.app.test_admin import HOST_A, AdminCase


class TokenCase(AdminCase):
    def setUp(self) -> None:
        super().setUp()
        count = iter(range(1, 100))
        more = TokenOps(lambda: self.fleet, lambda size: next(count).to_bytes(size, "big")).ops()
        self.ops = audited({**self.ops, **more}, lambda: self.fleet)

    def acts(self) -> list[Any]:
        self.end("acts")
        return [(row["actor"], row["act"], row["subject"]) for row in self.rows]


class Tokens(TokenCase):
    def test_add(self) -> None:
        """A token is told once, and the store keeps its hash alone (F23)."""
        made = self.end("token.add", name="ci", role="viewer")
        self.assertTrue(made["token"].startswith("ctx_"))
        self.assertEqual(len(made["token"]), 47)
        found = self.successResultOf(self.store.find_token(hash_token(made["token"])))
        assert found is not None
        self.assertEqual((found.name, found.role), ("ci", "viewer"))
        self.end("token.list")
        self.assertNotIn(made["token"], str(self.rows))
        self.assertNotIn("hash", str(self.rows))

    def test_no_two_are_alike(self) -> None:
        """Each token is another one."""
        tokens = {self.end("token.add", name=f"t{n}", role="viewer")["token"] for n in range(5)}
        self.assertEqual(len(tokens), 5)

    def test_revoke(self) -> None:
        """A revoked token is found no more, and its name is free."""
        made = self.end("token.add", name="ci", role="admin")
        self.assertIsNotNone(self.end("token.revoke", name="ci")["revoked_at"])
        self.assertIsNone(self.successResultOf(self.store.find_token(hash_token(made["token"]))))
        self.end("token.add", name="ci", role="viewer")

    def test_refusals(self) -> None:
        """Names that are taken, unknown or odd, and unknown roles are refused."""
        self.end("token.add", name="ci", role="viewer")
        for op, args, code in (
            ("token.add", {"name": "ci", "role": "viewer"}, "name_taken"),
            ("token.add", {"name": "a b", "role": "viewer"}, "bad_request"),
            ("token.add", {"name": "x", "role": "root"}, "bad_request"),
            ("token.revoke", {"name": "nobody"}, "not_found"),
        ):
            told = error_of(self.failureResultOf(self.begin(op, **args)).value)
            assert told is not None
            self.assertEqual(told["error"]["code"], code, args)


class Acts(TokenCase):
    def test_what_is_done_is_recorded(self) -> None:
        """Acts are recorded with whom they concern, reading is not, and no secret is."""
        made = self.end("agent.issue", name="web1", host_id=HOST_A)
        self.end("agent.list")
        self.end("agent.revoke", host="web1")
        token = self.end("token.add", name="ci", role="viewer")
        self.assertEqual(
            self.acts(),
            [
                ("local", "token.add", "ci"),
                ("local", "agent.revoke", HOST_A),
                ("local", "agent.issue", HOST_A),
            ],
        )
        self.assertNotIn(made["token"], str(self.rows))
        self.assertNotIn(token["token"], str(self.rows))

    def test_what_is_refused_is_not(self) -> None:
        """What was not done is no act."""
        self.refused("agent.revoke", host="nobody")
        self.assertEqual(self.acts(), [])

    def test_pages(self) -> None:
        """Acts are read a page at a time, of one subject or actor."""
        for number in range(3):
            self.end("token.add", name=f"t{number}", role="viewer")
        end = self.end("acts", limit=2)
        self.assertEqual([row["subject"] for row in self.rows], ["t2", "t1"])
        self.assertIsNone(self.end("acts", limit=2, before=end["next"])["next"])
        self.end("acts", subject="t1")
        self.assertEqual(len(self.rows), 1)
