"""What a file source is told to do (PURE).

In TOML, as members of `[[sources]]` with kind = "file":

    path = "/srv/app/*.log"     # absolute glob, required; `**` spans directories
    exclude = ["/srv/app/x*"]   # globs of paths that are left out; default none
    start = "start"             # or "end": where a file begins at the very first look (F41)
    encoding = "auto"           # or utf-8, utf-16le, utf-16be, latin-1
    format = "auto"             # see parse.FORMATS
    timezone = "Europe/Berlin"  # of times without an offset; default the host's own
    multiline = { start = "^\\d{4}-" }  # or continue = "^\\s"; max_lines = 500 (2 to 10,000),
                                # max_bytes = 262144 (1024 to 4 MiB), timeout_secs = 5.0
    max_files = 50000           # how many may be followed (1 to 1,000,000)
    partial_secs = 60.0         # 0 (never) to 86400: see TailSettings.partial_after
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import tzinfo

from cortextx.fleet.agent.sources.rotation import TailSettings


@dataclass(frozen=True, slots=True)
class FileSettings:
    """One file source's configuration.

    `paths` are globs. Real paths must lie below one of `roots`, by default the globs'
    own fixed parts, which suits what the agent's own configuration declares; for what a
    server asks for, give the log directories (F18, S2) and the `allowed` globs.
    Nothing below `excluded` is read: the agent's state directory (A35); nor what the globs
    of `exclude` match. `zone` is for times without an offset, None the host's own.
    `scan_interval` (seconds) is how often the disk is looked at; where `notified`, a
    change in one of at most `max_watches` directories makes the next look come at once.
    """

    paths: Sequence[str]
    roots: Sequence[str] = ()
    excluded: Sequence[str] = ()
    allowed: Sequence[str] = ()
    exclude: Sequence[str] = ()
    scan_interval: float = 1.0
    concurrency: int = 2
    zone: tzinfo | None = None
    format: str = "auto"
    notified: bool = True
    max_watches: int = 256
    tail: TailSettings = field(default_factory=TailSettings)
