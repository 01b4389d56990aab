"""``peagle doctor`` and ``peagle demo``: what this machine has, and what it can show."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict

import click

from peagle.cli.context import PeagleCommand, command_text, in_context
from peagle.cli.options import command_catalog
from peagle.cli.view.console import (
    folded,
    json_option,
    line_width,
    print_json,
    print_status,
    with_command,
)
from peagle.engine.machine import MachineCheck, check_environment
from peagle.errors import PeagleError, Refused, command_line


@click.command(cls=PeagleCommand, epilog="Example: peagle doctor --json")
@json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check what this machine has and lacks.

    Exits with 3 if something that `peagle demo` needs is missing.
    """
    checks = check_environment(command_catalog(ctx).runtimes.default)
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


NAME = "peagle-demo"
PROMPT = "What does difflib.SequenceMatcher.get_opcodes do?"


class DemoFailed(PeagleError, code="demo-failed"):
    """A command of the demo failed; the demo ends with its exit code.

    Fix: see the error of that command
    """

    def __init__(self, step: str, exit_code: int) -> None:
        super().__init__(f"the demo stopped at `peagle {step}`", "see the error above")
        self.exit_code = exit_code


@click.command(cls=PeagleCommand, epilog="Example: peagle demo --keep")
@click.argument("pair", default="tiny")
@click.option("--prompt", default=PROMPT, show_default=True, help="The prompt to send.")
@click.option("--keep", is_flag=True, help="Keep the endpoint and the sandbox running.")
def demo(pair: str, prompt: str, keep: bool) -> None:
    """Deploy PAIR in the sandbox, prove that it speculates, stream an answer, and clean up.

    Needs no AWS account, no GPU and no Docker. If PAIR is too large for this machine, the sandbox
    serves the tiny pair with the settings of its plan. A sandbox that is already running is used
    and kept.
    """
    from peagle.sandbox.client import running_sandbox

    was_running = running_sandbox() is not None
    _run("plan", pair, "--name", NAME)
    try:
        _run("deploy", pair, "--name", NAME, "--sandbox", "--yes")
        _run("invoke", NAME, prompt, "--stream", "--chat", "--sandbox")
        _run("status", NAME, "--sandbox")
    finally:
        if not keep:
            _run("destroy", NAME, "--sandbox", "--yes", check=False)
            if not was_running:
                _run("sandbox", "stop", check=False)
    if keep:
        commands: list[tuple[str, ...]] = [("peagle", "destroy", NAME, "--sandbox")]
        commands += [] if was_running else [("peagle", "sandbox", "stop")]
        remove = " && ".join(map(command_text, commands))
        print_status("The endpoint is still running. Remove it", remove)


def _run(*arguments: str, check: bool = True) -> None:
    click.secho(f"\n$ peagle {command_line(arguments)}", bold=True)
    code = subprocess.run([sys.executable, "-m", "peagle.cli", *arguments], check=False).returncode
    if code and check:
        raise DemoFailed(arguments[0], code)
