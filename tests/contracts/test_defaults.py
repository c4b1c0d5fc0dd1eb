"""Every number of the contract and the rulings, as a server has it unless told otherwise."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from cortextx.core.backoff import FullJitter
from cortextx.fleet import contract
from cortextx.fleet.server import clones, rows
from cortextx.fleet.server.settings import ServerSettings
from cortextx.fleet.server.tokens import TOKEN_BYTES, TokenPolicy
from cortextx.web import site

NUMBERS = {
    "the largest message, bytes (§2)": (contract.MAX_FRAME_BYTES, 1_048_576),
    "before the hello, bytes (§2, F3)": (contract.PRE_HELLO_BYTES, 1024),
    "seconds from one ping to the next (§2, F21)": (contract.PING_INTERVAL, 20),
    "missed pongs (§2, F21)": (contract.MISSED_PONGS, 3),
    "seconds for a hello (§3)": (contract.HELLO_TIMEOUT, 5),
    "the HTTP head, bytes (F3)": (site.HEAD_BYTES, 16_384),
    "seconds for the HTTP head (F3)": (site.HEAD_SECONDS, 5),
    "entries of a push (§4.4, F31)": (contract.MAX_ENTRIES, 1000),
    "characters of a message (§4.4)": (contract.MAX_MESSAGE_CHARS, 65_536),
    "samples of a push (§4.5)": (contract.MAX_SAMPLES, 512),
    "K (§7, F10)": (contract.ACK_ENTRIES, 100),
    "T, seconds (§7, F10)": (contract.ACK_DELAY, 0.2),
    "the protocol's version (§9)": (contract.PROTOCOL_VERSION, 1),
    "random bytes of a token (F6)": (TOKEN_BYTES, 32),
    "grace of a rotation, seconds (F7)": (TokenPolicy().rotation_grace, 300),
    "supersessions that are still none of a clone (F14)": (clones.SUPERSESSIONS, 5),
    "in so many seconds (F14)": (clones.SECONDS, 60),
    "µs of skew that are not shown (F15)": (rows.MAX_SKEW, 300_000_000),
}
SETTINGS = {
    "hello_max_bytes": 65_536,  # F3
    "one_time_token_hours": 24,  # F6
    "rotation_grace_secs": 300,  # F7
    "min_agent_version": None,  # §3, F34
    "quota_entries_per_sec": 50_000,
    "listen": ("tcp:8600:interface=127.0.0.1",),  # F20
    "tls_terminated_externally": False,
    "allow_insecure": False,
}


class Numbers(SynchronousTestCase):
    def test_they_are_those_of_the_contract(self) -> None:
        """A changed constant is a change of the contract."""
        for what, (ours, theirs) in NUMBERS.items():
            self.assertEqual(ours, theirs, what)

    def test_f18_settings_that_nobody_changed(self) -> None:
        """What a server does without a configuration, and what it tells hosts to do."""
        settings = ServerSettings()
        for name, value in SETTINGS.items():
            self.assertEqual(getattr(settings.server, name), value, name)
        told = [(source.kind, source.path or None) for source in settings.agent_config.log_sources]
        self.assertEqual(
            told, [("journald", None), ("docker", None), ("file", "/var/log/**/*.log")]
        )

    def test_s6_the_backoffs_bounds(self) -> None:
        """rand(0, min(60, 2^attempt)) seconds, from the first retry on."""
        most = FullJitter(random=lambda: 1.0)
        self.assertEqual([most.next_delay() for _ in range(8)], [1, 2, 4, 8, 16, 32, 60, 60])
