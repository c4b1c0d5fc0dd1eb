"""Who may connect, and attach to what: rules in a TOML file (PURE; I15).

    [[allow]]                      # one rule; any that fits lets the peer in
    uids = [1001]                  # or gids = [100]; neither: everybody
    scope = "shared"               # private (the peer's own) unless said
    spaces = ["team"]              # of shared sessions
    agents = ["*"]                 # names, or * for all, as in the other lists
    sessions = ["*"]
    mode = "observe"               # observe only; interact unless said
    capabilities = ["observe", "replay", "status"]   # all that the mode may have unless said
    delegate = true                # may name attach.data.owner (private and temp) …
    owners = [1001, 1002]          # … of these UIDs

Without a rule, a private or temp session belongs to the UID of the peer, and only
the slave's own user and root connect.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct
from zope.interface import implementer

from cortextx.core.exchange import Scope
from cortextx.interaction.faults import Code
from cortextx.interaction.v2 import Capability
from cortextx.interfaces.sessions import (
    AttachClaim,
    Denied,
    Granted,
    IPeerPolicy,
    Mode,
    Peer,
    SessionKey,
)

ANY = "*"


class Rule(Struct, frozen=True, kw_only=True):
    """See the module."""

    uids: list[int] = []
    gids: list[int] = []
    scope: Scope = "private"
    spaces: list[str] = []
    agents: tuple[str, ...] = (ANY,)
    sessions: tuple[str, ...] = (ANY,)
    mode: Mode = "interact"
    capabilities: list[Capability] | None = None
    delegate: bool = False
    owners: list[int] = []

    def is_for(self, peer: Peer) -> bool:
        """Whether the rule is about this peer."""
        if not self.uids and not self.gids:
            return True
        return peer.uid in self.uids or peer.gid in self.gids

    def allows(self, peer: Peer, claim: AttachClaim) -> bool:
        """Whether the rule allows all of this claim."""
        return (
            self.is_for(peer)
            and self.scope == claim.scope
            and _fits(claim.agent, self.agents)
            and _fits(claim.session, self.sessions)
            and (claim.scope != "shared" or _fits(claim.space or "", self.spaces))
            and (claim.mode == "observe" or self.mode == "interact")
            and (self.capabilities is None or claim.capabilities <= frozenset(self.capabilities))
            and self._allows_owner(peer, claim)
        )

    def _allows_owner(self, peer: Peer, claim: AttachClaim) -> bool:
        if claim.owner is None or claim.owner == peer.uid:
            return True
        return self.delegate and claim.owner in self.owners


class Rules(Struct, frozen=True, forbid_unknown_fields=True):
    """The policy file."""

    allow: list[Rule] = []


@implementer(IPeerPolicy)
class RulePolicy:
    """See the module; `uid` is the slave's own."""

    def __init__(self, uid: int, agents: Collection[str], rules: Sequence[Rule] = ()) -> None:
        self.generation = 1
        self._uid = uid
        self._agents = frozenset(agents)
        self._rules = tuple(rules)

    @property
    def is_open(self) -> bool:
        """Whether others than the slave's own user may come in at all."""
        return bool(self._rules)

    def replace(self, rules: Sequence[Rule]) -> None:
        """Take new rules; attachments are judged anew."""
        if tuple(rules) != self._rules:
            self._rules = tuple(rules)
            self.generation += 1

    def may_connect(self, peer: Peer) -> bool:
        """See IPeerPolicy."""
        return peer.uid in (0, self._uid) or any(rule.is_for(peer) for rule in self._rules)

    def judge(self, peer: Peer, claim: AttachClaim) -> Granted | Denied:
        """See IPeerPolicy."""
        if claim.agent not in self._agents:
            return Denied(Code.UNKNOWN_AGENT, "there is no such agent")
        own = claim.scope != "shared" and claim.owner in (None, peer.uid)
        if not (own and peer.uid in (0, self._uid)) and not any(
            rule.allows(peer, claim) for rule in self._rules
        ):
            return Denied(Code.FORBIDDEN, "no rule allows this")
        is_shared = claim.scope == "shared"
        return Granted(
            SessionKey(
                agent=claim.agent,
                scope=claim.scope,
                session=claim.session,
                owner=None if is_shared else (peer.uid if claim.owner is None else claim.owner),
                space=claim.space if is_shared else None,
            )
        )


def _fits(name: str, names: Collection[str]) -> bool:
    return ANY in names or name in names
