"""``peagle demo``: plan, deploy, invoke and destroy in the sandbox, as separate commands."""

from __future__ import annotations

import subprocess
import sys

import click

from peagle import api
from peagle.cli.context import PeagleCommand, command_text
from peagle.cli.output.console import print_status
from peagle.errors import PeagleError, command_line

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
    was_running = api.running_sandbox() is not None
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
