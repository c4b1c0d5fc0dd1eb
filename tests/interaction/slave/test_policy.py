"""The rules of who may attach to what (I15)."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from cortextx.interaction.faults import Code
from cortextx.interaction.slave.policy import Rule, RulePolicy
from cortextx.interfaces.sessions import AttachClaim, Denied, Granted, IPeerPolicy, Peer, SessionKey

ME = 1000
ROOT, OWN, OTHER = Peer(0, 0, 1), Peer(ME, ME, 2), Peer(2000, 200, 3)


def claim(**more: Any) -> AttachClaim:
    """A claim on a private session."""
    members: dict[str, Any] = {
        "agent": "echo",
        "scope": "private",
        "session": "default",
        "mode": "interact",
        "capabilities": frozenset({"input", "observe"}),
    }
    return AttachClaim(**(members | more))


class PolicyTests(SynchronousTestCase):
    def policy(self, *rules: Rule) -> RulePolicy:
        return RulePolicy(ME, ["echo", "other"], rules)

    def allowed(self, policy: RulePolicy, peer: Peer, **more: Any) -> bool:
        return isinstance(policy.judge(peer, claim(**more)), Granted)

    def test_without_rules_everybody_has_their_own_and_nobody_else_comes_in(self) -> None:
        """The slave's user and root connect, each to their own private and temp sessions."""
        policy = self.policy()
        self.assertTrue(IPeerPolicy.providedBy(policy))
        self.assertEqual(
            [policy.may_connect(peer) for peer in (ROOT, OWN, OTHER)], [True, True, False]
        )
        for peer in (ROOT, OWN):
            for scope in ("private", "temp"):
                self.assertEqual(
                    policy.judge(peer, claim(scope=scope)),
                    Granted(
                        SessionKey(agent="echo", scope=scope, session="default", owner=peer.uid)
                    ),
                )
        self.assertFalse(self.allowed(policy, OTHER))

    def test_shared_spaces_need_a_rule_whoever_asks(self) -> None:
        """Even root's: a space belongs to nobody."""
        for peer in (ROOT, OWN, OTHER):
            self.assertFalse(self.allowed(self.policy(), peer, scope="shared", space="team"))
        policy = self.policy(Rule(scope="shared", spaces=["team"], gids=[200]))
        self.assertEqual(
            policy.judge(OTHER, claim(scope="shared", space="team")),
            Granted(SessionKey(agent="echo", scope="shared", session="default", space="team")),
        )
        self.assertFalse(self.allowed(policy, OTHER, scope="shared", space="else"))
        self.assertFalse(self.allowed(policy, OWN, scope="shared", space="team"))

    def test_a_rule_names_users_groups_or_everybody(self) -> None:
        """Who is not named does not even connect."""
        for rule, wanted in (
            (Rule(uids=[2000]), True),
            (Rule(gids=[200]), True),
            (Rule(), True),
            (Rule(uids=[3], gids=[3]), False),
        ):
            policy = self.policy(rule)
            self.assertEqual(policy.may_connect(OTHER), wanted)
            self.assertEqual(self.allowed(policy, OTHER), wanted)

    def test_agents_and_sessions(self) -> None:
        """A rule is for the agents and sessions that it names."""
        policy = self.policy(Rule(uids=[2000], agents=("echo",), sessions=("a", "b")))
        self.assertTrue(self.allowed(policy, OTHER, session="b"))
        self.assertFalse(self.allowed(policy, OTHER, session="c"))
        self.assertFalse(self.allowed(policy, OTHER, agent="other", session="b"))

    def test_an_agent_that_there_is_not(self) -> None:
        """It is told as such, before any rule is asked."""
        verdict = self.policy().judge(OWN, claim(agent="none"))
        assert isinstance(verdict, Denied)
        self.assertEqual(verdict.code, Code.UNKNOWN_AGENT)

    def test_mode_and_capabilities_are_granted_as_claimed_or_not_at_all(self) -> None:
        """Nothing is silently taken away or given."""
        observe = self.policy(Rule(uids=[2000], mode="observe"))
        self.assertTrue(
            self.allowed(observe, OTHER, mode="observe", capabilities=frozenset({"observe"}))
        )
        self.assertFalse(self.allowed(observe, OTHER))
        some = self.policy(Rule(uids=[2000], capabilities=["input", "observe"]))
        self.assertTrue(self.allowed(some, OTHER))
        more = frozenset({"input", "observe", "cancel"})
        self.assertFalse(self.allowed(some, OTHER, capabilities=more))

    def test_delegates(self) -> None:
        """A host may act for the owners that its rule names, and for nobody else."""
        policy = self.policy(Rule(uids=[2000], delegate=True, owners=[5, 6]))
        self.assertEqual(
            policy.judge(OTHER, claim(owner=6)),
            Granted(SessionKey(agent="echo", scope="private", session="default", owner=6)),
        )
        for owner, wanted in ((5, True), (7, False), (ME, False), (2000, True), (None, True)):
            self.assertEqual(self.allowed(policy, OTHER, owner=owner), wanted, owner)
        named = self.policy(Rule(uids=[2000], owners=[5]))
        self.assertFalse(self.allowed(named, OTHER, owner=5))

    def test_nobody_acts_for_others_without_a_rule(self) -> None:
        """Neither the slave's own user nor root."""
        for peer in (ROOT, OWN):
            self.assertFalse(self.allowed(self.policy(), peer, owner=2000))

    def test_the_generation_grows_with_a_change_only(self) -> None:
        """The same rules again have nothing judged anew."""
        policy = self.policy(Rule(uids=[2000]))
        policy.replace([Rule(uids=[2000])])
        self.assertEqual(policy.generation, 1)
        policy.replace([])
        self.assertEqual(policy.generation, 2)
        self.assertFalse(policy.may_connect(OTHER))
