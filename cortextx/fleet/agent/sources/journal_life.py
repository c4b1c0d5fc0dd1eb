"""Where a journald source starts reading, again and again, and how fast (PURE).

A run of `journalctl` ends for many reasons: it met what vacuuming had removed, it was
killed, the buffer took nothing more. The next run starts at the last entry that is
durable in the buffer. If runs end at the same entry over and over with words of damage,
what follows is passed over, and that is a gap (A28); nothing is ever tried without delay.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from cortextx.core.backoff import FullJitter
from cortextx.fleet.agent.sources.journal_trail import At, Jumps, Position, Recover, Since

MIN_DELAY = 0.2
"""Seconds between two runs at least."""
MAX_DELAY = 30.0
STUCK_RUNS = 3
"""Runs that ended in damage at the same entry, after which it is passed."""
FIRST_STEP = 1_000_000
"""µs of the journal that are passed over at first; twice as much at each further try."""
MAX_STEP = 3_600_000_000
DOUBT_DELAY = 0.5
"""Seconds before the run that a doubt begins."""
TRUST = 60.0
"""Seconds without doubts once one was right, and jumps are gaps."""
LONG_TRUST = 600.0
"""The same where jumps mean nothing, as not all journals may be read."""
DAMAGE = (b"Bad message", b"Failed to get", b"Failed to iterate", b"Failed to read", b"corrupt")
"""What journalctl says when it cannot read an entry."""


class Kept(msgspec.Struct, omit_defaults=True):
    """A checkpoint: an entry's cursor, or before there is one the time (µs) to begin at.

    `filter` names what was read (`JournalSettings.filter_key`), `at` is the entry's time.
    """

    cursor: str | None = None
    at: int = 0
    since: int = 0
    filter: str = ""


def decode_kept(data: bytes | None) -> Kept | None:
    """What a checkpoint says; None for one that cannot be read."""
    if not data:
        return None
    try:
        return msgspec.json.decode(data, type=Kept)
    except (msgspec.MsgspecError, UnicodeError):
        return None


class JournalLife:
    """The order of the runs of one source.

    `begin` is where to start when nothing was read yet (µs UTC, F41). `random` is for
    the jitter of the delays.
    """

    def __init__(
        self,
        checkpoint: bytes | None,
        *,
        begin: int,
        filter_key: str,
        random: Callable[[], float],
        privileged: bool = True,
    ) -> None:
        kept = decode_kept(checkpoint)
        self.fresh = kept is None
        self._kept = kept or Kept(since=begin, filter=filter_key)
        self._filter = filter_key
        self._backoff = FullJitter(random=random, base=1.0, cap=MAX_DELAY)
        self._stuck = 0
        self._progress = False
        self._recover = False
        self._jump = False
        self._step = FIRST_STEP
        self._trusting_until = float("-inf")
        self._privileged = privileged

    @property
    def checkpoint(self) -> bytes:
        """What is durable once the buffer has it."""
        return msgspec.json.encode(self._kept)

    def position(self) -> Position:
        """Where the next run starts."""
        kept = self._kept
        if kept.cursor is None:
            return Since(kept.since, lost=self._stuck >= STUCK_RUNS)
        if self._stuck >= STUCK_RUNS:
            return Since(kept.at + self._step, lost=True)
        if self._recover:
            return Recover(kept.cursor)
        return At(kept.cursor, sure=kept.filter == self._filter, jump=self._jump)

    def started(self) -> None:
        """A run was started at `position`."""
        self._jump = False

    def mark(self, cursor: str, at: int) -> bytes:
        """The checkpoint that says that the entry with `cursor`, of the time `at`, was read."""
        return msgspec.json.encode(Kept(cursor=cursor, at=at, filter=self._filter))

    def durable(self, mark: bytes) -> None:
        """The buffer has a `mark`: the next run starts there."""
        kept = decode_kept(mark)
        assert kept is not None
        self._kept = kept
        self._progress = True
        self._stuck = 0
        self._step = FIRST_STEP
        self._recover = False

    def ended(self, errors: bytes = b"") -> float:
        """A run ended, with what it wrote to stderr; answers the seconds before the next."""
        progress, self._progress = self._progress, False
        if progress or self._jump:
            self._backoff.reset()
            return DOUBT_DELAY if self._jump else MIN_DELAY
        if any(word in errors for word in DAMAGE):
            if self._stuck >= STUCK_RUNS:
                self._step = min(2 * self._step, MAX_STEP)
            self._stuck += 1
        return max(MIN_DELAY, self._backoff.next_delay())

    def refused(self) -> float:
        """The buffer did not take what a run had read; answers the seconds to wait."""
        self._progress = False
        return max(1.0, self._backoff.next_delay())

    def nothing_found(self) -> None:
        """A run found nothing at its entry or behind: the next starts at the oldest entry."""
        if self._kept.cursor is not None:
            self._recover = True

    # Doubts

    def jumps(self, now: float) -> Jumps:
        """What a jump of numbers is now. Who may not read all journals (`privileged`) sees
        jumps where nothing is lost."""
        if now >= self._trusting_until:
            return "doubt"
        return "gap" if self._privileged else "count"

    def doubted(self) -> None:
        """A run ended itself at a jump: the next shows whether its entry is still there."""
        self._jump = True

    def persisted(self, now: float) -> None:
        """The jump was still there in the next run."""
        self._trusting_until = now + (TRUST if self._privileged else LONG_TRUST)
