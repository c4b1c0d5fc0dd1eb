r"""Rules that entries pass before the buffer: drop, sample, redact, limit (PURE).

[[rules]]
match = { source = "docker:web-*", severity_min = "info", message = "healthz" }
action = "drop"

They apply in the order in which they stand. `drop`, `sample` and `limit` end an entry or
let it go on to the next rule; `redact` changes it, and later rules see what it left.
Every member of `match` that is given must hold; without any, the rule applies to all.

match.source        a glob on the entry's source (`file:/var/log/nginx/*`); `*` goes over `/`
match.app           a glob on its program; an entry without one has ""
match.severity_min  this severity or a worse one
match.severity_max  this severity or a milder one
match.message       a pattern (RE2) that occurs in the message
sample: keep        the share that is kept, 0 to 1
        by          "random", or what a kept entry is chosen by: "message", "app_name" or
                    "process_id"; the same value is always kept, or never
redact: pattern, replacement ("[redacted]"; `\1` is a group), in the message and in all
                    strings of the metadata
limit:  rate, burst entries a second of each source, and at once (default: as rate)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Literal

from cortextx.core.patterns import Pattern, PatternError, Replacement, compiled
from cortextx.core.syslog import SEVERITY_NUMBER
from cortextx.errors import ConfigError
from cortextx.fleet.agent.tables import RuleMatch, RuleTable, check_rule

MAX_RULES = 256
REDACTED = "[redacted]"


@dataclass(frozen=True, slots=True)
class Match:
    """A compiled `match`; None means any. Severities are numbers, 0 is the worst."""

    source: re.Pattern[str] | None = None
    app: re.Pattern[str] | None = None
    worst: int = 0
    mildest: int = 7
    message: Pattern | None = None

    @property
    def always(self) -> bool:
        """Whether nothing but the source decides."""
        return self.app is None and self.message is None and (self.worst, self.mildest) == (0, 7)


@dataclass(slots=True)
class Tally:
    """What one rule did: `matched` entries, `dropped` of these, `redacted` replacements."""

    matched: int = 0
    dropped: int = 0
    redacted: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """One compiled rule; `name` is the table's own or `rules[2]`."""

    name: str
    match: Match
    action: Literal["drop", "sample", "redact", "limit"]
    keep: float = 1.0
    by: Literal["random", "message", "app_name", "process_id"] = "random"
    pattern: Pattern | None = None
    replacement: Replacement | None = None
    rate: float = 0.0
    burst: float = 0.0
    tally: Tally = field(default_factory=Tally, compare=False)


def compile_rules(tables: Sequence[RuleTable], where: str) -> tuple[Rule, ...]:
    """Compile all rules; raises ConfigError with the rule's index and member."""
    if len(tables) > MAX_RULES:
        raise ConfigError(where, "rules", f"at most {MAX_RULES} rules")
    rules = tuple(_rule(table, index, where) for index, table in enumerate(tables))
    seen: set[str] = set()
    for index, rule in enumerate(rules):
        if rule.name in seen:
            expected = f"another name than {rule.name!r}, which is taken"
            raise ConfigError(where, f"rules[{index}].name", expected)
        seen.add(rule.name)
    return rules


def _rule(table: RuleTable, index: int, where: str) -> Rule:
    at = f"rules[{index}]"
    check_rule(table, where, at)
    pattern = _pattern(table.pattern, f"{at}.pattern", where)
    replacement = None
    if pattern is not None:
        try:
            text = REDACTED if table.replacement is None else table.replacement
            replacement = Replacement(text, pattern)
        except PatternError as error:
            expected = f"text in which groups are those of the pattern ({error})"
            raise ConfigError(where, f"{at}.replacement", expected) from None
        if pattern.found_in(""):
            expected = "a pattern that does not match the empty text"
            raise ConfigError(where, f"{at}.pattern", expected)
    rate = table.rate or 0.0
    return Rule(
        name=table.name or at,
        match=_match(table.match, f"{at}.match", where),
        action=table.action,
        keep=1.0 if table.keep is None else table.keep,
        by=table.by or "random",
        pattern=pattern,
        replacement=replacement,
        rate=rate,
        burst=max(1.0, rate) if table.burst is None else table.burst,
    )


def _match(table: RuleMatch, at: str, where: str) -> Match:
    worst = 0 if table.severity_max is None else SEVERITY_NUMBER[table.severity_max]
    mildest = 7 if table.severity_min is None else SEVERITY_NUMBER[table.severity_min]
    if worst > mildest:
        expected = "a severity that is not milder than severity_min"
        raise ConfigError(where, f"{at}.severity_max", expected)
    return Match(
        source=_glob(table.source),
        app=_glob(table.app),
        worst=worst,
        mildest=mildest,
        message=_pattern(table.message, f"{at}.message", where),
    )


def _glob(glob: str | None) -> re.Pattern[str] | None:
    # fnmatch's translation has atomic groups only, so it does not backtrack without end.
    return None if glob is None else re.compile(translate(glob))


def _pattern(text: str | None, at: str, where: str) -> Pattern | None:
    if text is None:
        return None
    try:
        return compiled(text)
    except PatternError as error:
        raise ConfigError(where, at, f"a regular expression ({error})") from None
