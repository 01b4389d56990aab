"""``peagle demo``: the whole way in one go, as commands that can be typed one by one."""

from __future__ import annotations

import shlex
import subprocess
import sys

import click

from peagle.cli.context import PeagleCommand
from peagle.cli.output.console import say
from peagle.errors import PeagleError
from peagle.sandbox import running

NAME = "peagle-demo"
PROMPT = "What does difflib.SequenceMatcher.get_opcodes do?"


class DemoFailed(PeagleError):
    """A step of the demo failed; its own message stands above, its exit code is ours."""

    def __init__(self, step: str, exit_code: int) -> None:
        super().__init__(f"the demo stopped at `peagle {step}`", "its error is above")
        self.exit_code = exit_code


@click.command(cls=PeagleCommand, epilog="Example: peagle demo --keep")
@click.argument("pair", default="tiny")
@click.option("--prompt", default=PROMPT, show_default=True, help="What to ask.")
@click.option("--keep", is_flag=True, help="Leave endpoint and sandbox running.")
def demo(pair: str, prompt: str, keep: bool) -> None:
    """Deploy PAIR in the sandbox, prove that it drafts, stream an answer, and clean up.

    Needs no AWS account, no GPU and no Docker. A pair too large for this machine is planned as
    it is and served by our tiny pair under the same settings. A sandbox that runs already is used
    and left running.
    """
    was_running = running() is not None
    _run("plan", pair, "--name", NAME)
    try:
        _run("deploy", pair, "--name", NAME, "--sandbox", "--yes")
        _run("invoke", NAME, prompt, "--stream", "--chat", "--sandbox")
        _run("status", NAME, "--sandbox")
    finally:
        if not keep:
            _clean_up(stop_sandbox=not was_running)
    if keep:
        stop = "" if was_running else " && peagle sandbox stop"
        say(f"Still running; remove with: peagle destroy {NAME} --sandbox{stop}")


def _clean_up(stop_sandbox: bool) -> None:
    _run("destroy", NAME, "--sandbox", "--yes", must=False)
    if stop_sandbox:
        _run("sandbox", "stop", must=False)


def _run(*arguments: str, must: bool = True) -> None:
    click.secho(f"\n$ peagle {shlex.join(arguments)}", bold=True)
    code = subprocess.run([sys.executable, "-m", "peagle.cli", *arguments], check=False).returncode
    if code and must:
        raise DemoFailed(arguments[0], code)
