"""How a file stays where it was read to when another source takes it over (PURE, A59).

Checkpoints carry the name of the source object that made them. Where a configuration
moves a file to another one (it gets its own multiline rule, say), that one goes on from
the checkpoint of the first; which bytes it really is, is checked as always (A10).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cortextx.fleet.agent.sources.identity import Checkpoint, decode_checkpoint


def inherited(
    checkpoints: Mapping[str, bytes], name: str, reads: Callable[[str], bool]
) -> dict[str, bytes]:
    """The checkpoints as the source `name` is to see them; `reads` says of a path whether
    it is one of its own. Of two checkpoints of a file the one that is further counts."""
    found = dict(checkpoints)
    best: dict[str, Checkpoint] = {}
    for key, data in checkpoints.items():
        one = _decoded(key, data)
        if one is None or not reads(one.home):
            continue
        mine = f"file:{name}:{one.dev}:{one.ino}"
        known = best.get(mine) or _decoded(mine, checkpoints.get(mine))
        if known is None or one.offset > known.offset:
            best[mine] = one
            found[mine] = data
    return found


def _decoded(key: str, data: bytes | None) -> Checkpoint | None:
    """The checkpoint of a file; its key ends in the device and the inode."""
    if data is None or not key.startswith("file:"):
        return None
    try:
        one = decode_checkpoint(data)
    except ValueError:
        return None
    return one if key.endswith(f":{one.dev}:{one.ino}") else None
