"""``peagle doctor``: what this machine has, what it lacks, and how to fix it."""

from __future__ import annotations

from dataclasses import asdict

import click

from peagle import api
from peagle.cli.context import PeagleCommand, command_text, in_context
from peagle.cli.options import command_catalog
from peagle.cli.output.console import folded, json_option, line_width, print_json, with_command
from peagle.engine.machine import MachineCheck
from peagle.errors import Refused


@click.command(cls=PeagleCommand, epilog="Example: peagle doctor --json")
@json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check what this machine has and lacks.

    Exits with 3 if something that `peagle demo` needs is missing.
    """
    checks = api.check_environment(command_catalog(ctx).runtimes.default)
    if as_json:
        print_json({"checks": [_document(check) for check in checks]})
    else:
        for check in checks:
            mark = click.style("ok", fg="green") if check.fine else click.style("--", fg="yellow")
            lines = folded(f"{check.what}: {check.found}", line_width() - 3, "")
            if not check.fine:
                needed = f"needed for {check.needed_for}: {check.fix}"
                lines += with_command(needed, command_text(check.command), line_width() - 3)
            click.echo(f"{mark} " + "\n   ".join(lines))
    if any(not check.fine and check.needed_for == "demo" for check in checks):
        ctx.exit(Refused.exit_code)


def _document(check: MachineCheck) -> dict[str, object]:
    if check.fine:
        return {**asdict(check), "fix": "", "command": None}
    return {**asdict(check), "command": list(in_context(check.command)) or None}
