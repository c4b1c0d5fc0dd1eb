"""How an agent is, in one word, and why it is not better (PURE, A37).

`red`: somebody must do something; `yellow`: something is not as it should be, and may
mend itself; whichever it is, the reasons are told with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from cortextx.fleet.agent.changing import Standing
    from cortextx.fleet.agent.policy import LeftOut
    from cortextx.fleet.agent.sources.report import SourceReport

LONGEST_WAIT = 60.0
"""Seconds that a source which ran before may wait before it is told."""
FIRST_WAIT = 10.0
"""Seconds that one may which has never run since it was started."""
MAX_REASONS = 20
"""Reasons that are told at most."""

Health = Literal["green", "yellow", "red"]


class Judged(NamedTuple):
    """The health and the reasons for it, the gravest first; none where it is green."""

    health: Health
    why: list[str]


class Waits:
    """Since when each source waits, from reports that are looked at every second or so."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], float] = {}
        self._ran: set[tuple[str, str]] = set()

    def looked(self, now: float, reports: Iterable[SourceReport]) -> None:
        """This is how the sources are at `now`, in seconds."""
        seen: set[tuple[str, str]] = set()
        for report in reports:
            key = (report.kind, report.name)
            seen.add(key)
            if is_waiting(report):
                self._since.setdefault(key, now)
                continue
            self._since.pop(key, None)
            if report.state != "paused":
                self._ran.add(key)
        self._ran &= seen
        self._since = {key: since for key, since in self._since.items() if key in seen}

    def troubled(self, now: float, reports: Iterable[SourceReport]) -> list[SourceReport]:
        """The sources that have failed or that wait for too long, and those that say
        themselves, in `details["trouble"]`, that not all is well although they run."""
        found: list[SourceReport] = []
        for report in reports:
            since = self._since.get((report.kind, report.name))
            ran = (report.kind, report.name) in self._ran
            late = since is not None and now - since >= (LONGEST_WAIT if ran else FIRST_WAIT)
            if report.state == "failed" or late or report.details.get("trouble"):
                found.append(report)
        return found


def is_waiting(report: SourceReport) -> bool:
    """Whether a source does not do its work although it should; one that rests between two
    runs, or whose input is at its end, has done it (`details["at_rest"]`)."""
    return report.state == "waiting" and not report.details.get("at_rest")


def judge(
    *,
    state: str,
    why: str,
    broken: str | None,
    full: str | None,
    apart: Sequence[str] | None,
    troubled: Sequence[SourceReport],
    left_out: Sequence[LeftOut],
    config: Standing,
) -> Judged:
    """The health: `state` and `why` are the link's, `broken`, `full` and `apart` the
    buffer's, `left_out` what does not run. What only a server asked for and may not have
    is as this host wants it, and no trouble."""
    red: list[str] = []
    yellow: list[str] = []
    if broken:
        red.append(f"the buffer is broken: {broken}")
    if apart:
        red.append(f"nobody has looked at {', '.join(apart)} of the buffer")
    if state in ("fatal_auth", "revoked"):
        red.append(why or f"the server refuses this host ({state})")
    elif state != "active":
        yellow.append(f"not connected: {why}" if why else f"not connected: {state}")
    if full:
        yellow.append(f"the buffer takes nothing more: {full}")
    yellow += [said_of(report) for report in troubled]
    yellow += [
        f"source {left.kind} {left.name} does not run: {left.why}"
        for left in left_out
        if left.origin == "local"
    ]
    if config.state in ("rolled_back", "refused"):
        done = "was taken back" if config.state == "rolled_back" else "cannot be used"
        yellow.append(f"the server's configuration {done}: {config.reason}")
    reasons = [*red, *yellow][:MAX_REASONS]
    return Judged("red" if red else "yellow" if yellow else "green", reasons)


def said_of(report: SourceReport) -> str:
    """A source's trouble in words."""
    trouble = report.details.get("trouble")
    why = str(trouble or report.why or "it does not say why")
    does = {"failed": "has failed", "waiting": "waits"}.get(report.state, "is in trouble")
    return f"source {report.kind} {report.name} {does}: {why}"
