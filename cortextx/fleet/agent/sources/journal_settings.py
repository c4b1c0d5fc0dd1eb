"""What a journald source reads, and the command line of the `journalctl` that reads it (PURE).

TOML keys of `[[sources]]` with `kind = "journald"`:

    units         list of unit names or globs (`nginx.service`, `app-*`); [] is all
    identifiers   list of syslog identifiers; [] is all
    matches       list of FIELD=value, as journalctl has them; [] is all
    priority_max  a severity's name: entries at least that severe; default all
    directory     an absolute path with journal files; default the host's own journals
    namespace     a journal namespace; default the host's own
    start         "end" skips what is there when the journal is first read (F41)
    since         how far back it is read then, as "24h" (the default)

Different kinds of these narrow one another, values of one kind widen it. A server's
`filter` is a text of FIELD=value words (`matches_of`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2s
from typing import Literal

from cortextx.core.syslog import Severity

PROGRAM = "journalctl"
DAY_SECONDS = 86_400.0
FIELDS = (
    "MESSAGE", "PRIORITY", "SYSLOG_FACILITY", "SYSLOG_IDENTIFIER", "SYSLOG_PID", "_PID", "_COMM",
    "_SYSTEMD_UNIT", "_SYSTEMD_USER_UNIT", "_TRANSPORT", "_UID", "_HOSTNAME", "_BOOT_ID",
    "MESSAGE_ID", "CONTAINER_NAME",
)  # fmt: skip
"""The fields that journalctl is asked for; it gives cursor and times in any case."""

_MATCH = re.compile(r"[A-Z_][A-Z0-9_]{0,63}=[^\x00-\x1f\x7f]{0,1024}\Z")
_WORD = re.compile(r"[^\x00-\x1f\x7f-][^\x00-\x1f\x7f]{0,254}\Z")


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """One journald source's configuration; see this file's head. `since_secs` is `since`.

    `exclude_units` are not sent; neither is what this process or its own unit wrote (A35).
    `program` is journalctl.
    """

    units: tuple[str, ...] = ()
    identifiers: tuple[str, ...] = ()
    matches: tuple[str, ...] = ()
    priority_max: Severity | None = None
    directory: str | None = None
    namespace: str | None = None
    start: Literal["start", "end"] = "start"
    since_secs: float = DAY_SECONDS
    exclude_units: tuple[str, ...] = ()
    program: str = PROGRAM

    @property
    def whole(self) -> bool:
        """Whether all entries are read, so that numbers which are missing mean something."""
        return not (self.units or self.identifiers or self.matches or self.priority_max)

    @property
    def filter_key(self) -> str:
        """Names what is read: where that changes, a cursor need not be found again."""
        chosen = (self.units, self.identifiers, self.matches, self.priority_max)
        place = (self.directory, self.namespace)
        return blake2s(repr((chosen, place)).encode(), digest_size=6).hexdigest()


def matches_of(text: str | None) -> tuple[str, ...]:
    """The matches of a server's `filter`, words as `_TRANSPORT=journal`.

    Raises ValueError for anything else: journalctl takes other words for paths.
    """
    words = tuple((text or "").split())
    for word in words:
        if _MATCH.match(word) is None:
            raise ValueError(f"{word[:80]!r} is not FIELD=value")
    return words


def command(
    settings: JournalSettings, *, cursor: str | None = None, since: int | None = None
) -> list[str]:
    """The command that follows the journal from `cursor` (that entry included), from
    `since` (µs UTC, included), or from the oldest entry. Raises ValueError for names
    that journalctl could take for something else.

    `--cursor` and not `--after-cursor`: the latter skips an entry unseen where the
    cursor's own is gone (A26). `--merge`, because `--follow` alone reads the newest boot
    only; `--all`, because long and binary fields are left out else.
    """
    line = [
        settings.program, "--output=json", "--all", "--quiet", "--no-pager", "--follow",
        "--no-tail", "--merge", "--output-fields=" + ",".join(FIELDS),
    ]  # fmt: skip
    for option, names in (("unit", settings.units), ("identifier", settings.identifiers)):
        for name in names:
            if _WORD.match(name) is None:
                raise ValueError(f"{name[:80]!r} is no {option}")
            line.append(f"--{option}={name}")
    if settings.priority_max is not None:
        line.append(f"--priority={settings.priority_max}")
    if settings.directory is not None:
        line.append(f"--directory={settings.directory}")
    if settings.namespace is not None:
        line.append(f"--namespace={settings.namespace}")
    if cursor is not None:
        line.append(f"--cursor={cursor}")
    elif since is not None:
        line.append(f"--since=@{since // 1_000_000}.{since % 1_000_000:06d}")
    line.append("--")
    for match in settings.matches:
        if _MATCH.match(match) is None:
            raise ValueError(f"{match[:80]!r} is not FIELD=value")
        line.append(match)
    return line
