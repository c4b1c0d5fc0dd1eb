"""`cortextx conformance check`: frames in a file, and whether our decoders agree with them.

For those who carry out an interaction ABI elsewhere: what they send, and what they
refuse, row by row against what we do.
"""

from __future__ import annotations

from collections import Counter
from typing import IO, Any

import click

from cortextx.app.cli.agent import example
from cortextx.app.cli.faults import FOUND
from cortextx.app.cli.invocation import Invocation, json_option, pass_invocation
from cortextx.app.cli.terminal import escaped, print_json
from cortextx.interaction.conformance import Abi, Judgement, Row, judge, read_row

ABIS = ("interaction-v2", "interaction-v1")


@click.group(
    epilog=example(
        "cortextx conformance check --abi interaction-v2 frames.jsonl",
        "my-encoder | cortextx conformance check --abi interaction-v1 -",
    )
)
def conformance() -> None:
    """Check frames of another implementation against the interaction ABIs."""


@conformance.command(
    epilog=example(
        "cortextx conformance check --abi interaction-v2 frames.jsonl",
        "cortextx conformance check --abi interaction-v1 - --json < frames.jsonl",
    )
)
@click.option("--abi", required=True, type=click.Choice(ABIS), help="Which decoder judges.")
@click.argument("file", type=click.File("rb"))
@json_option
@pass_invocation
def check(invocation: Invocation, /, abi: Abi, file: IO[bytes]) -> None:
    """Judge every row of FILE (- is stdin), a JSON object a line.

    \b
    A row has an `id`, the frame, and maybe a `verdict`: ok, reject or any.
      {"id": "r1", "verdict": "ok", "frame_b64": "eyJhYmkiOi…"}
      {"id": "r2", "verdict": "reject", "gen":
        {"prefix": "{\\"abi\\":\\"", "repeat": "x", "count": 300000, "suffix": "\\n"}}

    Prints `ok ID` or `reject ID REASON` a row, and at last how many agree with their
    verdict, how many differ, and how many have none (free). What differs is told on
    stderr as well. Ends with 0 only if none differs, else with 5. With --json: an
    object a row, and one with the counts.
    """
    counts: Counter[str] = Counter()
    name = escaped(click.format_filename(getattr(file, "name", "-")))
    for number, text in enumerate(file, 1):
        if not text.strip():
            continue
        row = read_row(text, f"{name}:{number}")
        judgement = judge(abi, row.line)
        outcome = _outcome(row, judgement)
        counts[outcome] += 1
        if invocation.json:
            print_json(_told(row, judgement, outcome))
        else:
            click.echo(_line(row, judgement))
        if outcome == "differ":
            click.echo(f"{name}:{number}: {escaped(row.id)}: expected {row.verdict}", err=True)
    if invocation.json:
        print_json({each: counts[each] for each in ("agree", "differ", "free")})
    else:
        click.echo(f"{counts['agree']} agree, {counts['differ']} differ, {counts['free']} free")
    if counts["differ"]:
        click.get_current_context().exit(FOUND)


def _outcome(row: Row, judgement: Judgement) -> str:
    if row.verdict == "any":
        return "free"
    return "agree" if judgement.agrees(row.verdict) else "differ"


def _line(row: Row, judgement: Judgement) -> str:
    if judgement.accepted:
        return f"ok {escaped(row.id)}"
    return f"reject {escaped(row.id)} {escaped(judgement.reason)}"


def _told(row: Row, judgement: Judgement, outcome: str) -> dict[str, Any]:
    return {
        "id": row.id,
        "judged": "ok" if judgement.accepted else "reject",
        "reason": judgement.reason,
        "verdict": row.verdict,
        "outcome": outcome,
    }
