"""`cortextx doctor`: what is wrong with the installation on this machine, and what mends it.

It changes nothing. Each look stands alone: one that fails is a finding too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict

import click

from cortextx.app.cli.faults import FOUND, OK, Fault
from cortextx.app.cli.findings import Finding, wrong
from cortextx.app.cli.invocation import Invocation, json_option, pass_invocation
from cortextx.app.cli.terminal import escaped, print_json
from cortextx.errors import CortexError

_MARKS = {"ok": "ok   ", "note": "note ", "wrong": "WRONG"}


@click.command(
    epilog="""\b
Examples:
  cortextx doctor
  cortextx doctor --quiet || mail -s "cortextx on $(hostname)" root < /dev/null

\b
Exit codes: 0 nothing is wrong (there may be notes), 5 something is."""
)
@click.option("-q", "--quiet", is_flag=True, help="Show only what is not in order.")
@json_option
@pass_invocation
def doctor(invocation: Invocation, quiet: bool) -> None:
    """Look for what is wrong with the server and the agent on this machine.

    Files and who may read them, disk, clock, configuration, ports, certificate,
    the processes and what they say of themselves and of the hosts. It changes
    nothing. With --json: {"findings": [{"level", "about", "said", "hint"}, …]}.
    """
    from cortextx.app.cli import doctor_agent, doctor_machine, doctor_server, doctor_store

    looks = (
        *doctor_machine.LOOKS, *doctor_server.LOOKS, *doctor_store.LOOKS, *doctor_agent.LOOKS
    )  # fmt: skip
    found: list[Finding] = []
    for look in looks:
        known = {(finding.said, finding.hint) for finding in found}
        # Several looks may stumble over one fault.
        found += [each for each in _safely(look, invocation) if (each.said, each.hint) not in known]
    sick = any(finding.level == "wrong" for finding in found)
    shown = [finding for finding in found if not quiet or finding.level != "ok"]
    if invocation.json:
        print_json({"findings": [asdict(finding) for finding in shown]})
    else:
        for finding in shown:
            click.echo(f"{_MARKS[finding.level]} {finding.about}: {escaped(finding.said)}")
            if finding.hint:
                click.echo(f"      next: {escaped(finding.hint)}")
    click.get_current_context().exit(FOUND if sick else OK)


def _safely(
    look: Callable[[Invocation], Iterable[Finding]], invocation: Invocation
) -> list[Finding]:
    """What a look finds; that it could not look, where it could not."""
    about = look.__name__.replace("_", " ")
    found: list[Finding] = []
    try:
        found.extend(look(invocation))
    except Fault as fault:
        found.append(wrong(about, fault.message, fault.hint))
    except (CortexError, OSError) as error:
        found.append(wrong(about, str(error)))
    return found
