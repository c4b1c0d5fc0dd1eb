"""An invitation: all that a host needs to enrol, as one URL to hand over (F6, F40; PURE).

`ws://server:8600/ws/agent#token=…&host_id=…&ca_pin=…`: where the agent connects,
and in the fragment, which no client sends on, the one-time token, the host id
if it is decided already, and the pin of the server's own CA if it has one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import parse_qs, quote, urlsplit

import msgspec

from cortextx.errors import ConfigError
from cortextx.fleet.pin import check_pin

MIN_TOKEN, MAX_TOKEN = 32, 256
"""Characters of a token (§4.1)."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """What an invitation says. The token never shows in a repr (F23)."""

    url: str
    token: str = field(repr=False)
    host_id: str | None = None
    ca_pin: str | None = None

    def __str__(self) -> str:
        return f"an invitation to {self.url}"


def write_invitation(invitation: Invitation) -> str:
    """The invitation as one URL. It is a secret."""
    parts = {
        "token": invitation.token,
        "host_id": invitation.host_id,
        "ca_pin": invitation.ca_pin,
    }
    said = "&".join(f"{name}={quote(value, safe='')}" for name, value in parts.items() if value)
    return f"{invitation.url}#{said}"


def invitation_in(text: str) -> str:
    """The invitation in what `cortextx agent issue` printed, as text or JSON, or in a text
    that is nothing else; what holds none is answered as it is."""
    text = text.strip()
    if text.startswith("{"):
        try:
            found = msgspec.json.decode(text, type=_Issued).invitation
        except (msgspec.MsgspecError, UnicodeError):
            return text
        return found.strip()
    urls = [word for word in text.split() if word.startswith(("ws://", "wss://")) and "#" in word]
    return urls[0] if len(urls) == 1 else text


class _Issued(msgspec.Struct):
    invitation: str


def read_invitation(text: str) -> Invitation:
    """The opposite; raises ConfigError, which never repeats what it was given."""
    text = text.strip()
    try:
        parts = urlsplit(text)
        said = parse_qs(parts.fragment, strict_parsing=True, max_num_fields=8)
    except ValueError:
        raise ConfigError("invitation", "text", "ws://HOST:PORT/ws/agent#token=…") from None
    url = check_url(text.partition("#")[0], "invitation")
    token = check_token(said.get("token", [""])[0], "invitation")
    pin = said.get("ca_pin", [None])[0]
    if pin is not None:
        pin = check_pin(pin, "invitation")
        if not url.startswith("wss://"):
            raise ConfigError("invitation", "url", "wss://, where a CA is pinned")
    return Invitation(url, token, said.get("host_id", [None])[0], pin)


def check_url(url: str, where: str) -> str:
    """The URL of a server, if it can be one; raises ConfigError with `where`."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("ws", "wss") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or any(c <= " " or c == "\x7f" for c in url) or "#" in url:
        raise ConfigError(where, "url", "ws://HOST:PORT/ws/agent or wss://…")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(where, "url", "a URL without user or password")
    return url


def check_token(token: str, where: str) -> str:
    """The token, if it can be one; raises ConfigError with `where`, not with the token."""
    if not MIN_TOKEN <= len(token) <= MAX_TOKEN or not token.isascii() or not token.isprintable():
        raise ConfigError(where, "token", f"{MIN_TOKEN} to {MAX_TOKEN} printable characters")
    return token
