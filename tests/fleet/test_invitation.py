"""An invitation survives its way through a URL, and faults never repeat the secret (F6, F40)."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from cortextx.errors import ConfigError
from cortextx.fleet.invitation import (
    Invitation,
    check_url,
    invitation_in,
    read_invitation,
    write_invitation,
)

TOKEN = "t" * 43
URL = "ws://127.0.0.1:8600/ws/agent"
SECURE = "wss://127.0.0.1:8600/ws/agent"
PIN = "sha256:" + "0a" * 32


class Invitations(SynchronousTestCase):
    """Write and read."""

    @settings(max_examples=50, deadline=None)
    @given(
        token=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=32, max_size=99),
        pin=st.none() | st.just(PIN),
        host_id=st.none() | st.just("6f1d2a1e-0000-4000-8000-000000000001"),
    )
    def test_there_and_back(self, token: str, pin: str | None, host_id: str | None) -> None:
        """What was written is read, whatever characters the token has."""
        made = Invitation(SECURE, token, host_id, pin)
        self.assertEqual(read_invitation(f"  {write_invitation(made)}\n"), made)

    def test_secrets_do_not_show(self) -> None:
        """Neither a repr nor an error holds the token (F23)."""
        self.assertNotIn(TOKEN, f"{Invitation(URL, TOKEN)!r} {Invitation(URL, TOKEN)}")
        for text in (f"http://x/#token={TOKEN}", TOKEN, f"{URL}#{TOKEN}", f"{URL}#tok={TOKEN}"):
            error = self.assertRaises(ConfigError, read_invitation, text)
            self.assertNotIn(TOKEN, str(error))

    def test_it_is_found_in_what_was_printed(self) -> None:
        """All that `agent issue` prints, as text or JSON, may be handed over as it is; what
        holds no invitation, or two, is refused as ever, without the secret."""
        text = write_invitation(Invitation(SECURE, TOKEN, ca_pin=PIN))
        for printed in (
            text,
            f"token       {TOKEN}\ninvitation  {text}\n",
            json.dumps({"host_id": None, "token": TOKEN, "invitation": text}),
        ):
            self.assertEqual(invitation_in(printed), text)
        for printed in (f"{text}\n{text}", json.dumps({"token": TOKEN}), "{", ""):
            error = self.assertRaises(ConfigError, read_invitation, invitation_in(printed))
            self.assertNotIn(TOKEN, str(error))

    def test_a_pin_must_be_one(self) -> None:
        """A pin that is none, or one for a connection in the clear, is refused: it would
        protect nobody (F40)."""
        for url, pin in ((SECURE, "sha256:0a"), (SECURE, "md5:" + "0" * 32), (URL, PIN)):
            text = write_invitation(Invitation(url, TOKEN, None, pin))
            self.assertRaises(ConfigError, read_invitation, text)

    def test_what_is_no_url(self) -> None:
        """Only a WebSocket URL with a host and without a password is one."""
        for url in ("", "ws://", "http://x/", "ws://a:b@x/", "ws://x:99999/", "ws://x/ y", "x:1"):
            self.assertRaises(ConfigError, check_url, url, "--url")
        self.assertEqual(check_url("wss://x/ws/agent", "--url"), "wss://x/ws/agent")
