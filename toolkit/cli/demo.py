"""``peagle demo``: the whole way in one go, as commands that can be typed one by one."""

from __future__ import annotations

import shlex
import subprocess
import sys

import click

from toolkit.cli.console import say
from toolkit.errors import PeagleError

NAME = "peagle-demo"
PROMPT = "What does difflib.SequenceMatcher.get_opcodes do?"


class DemoFailed(PeagleError):
    """A step of the demo failed; its own message stands above."""


@click.command(epilog="Example: peagle demo --keep")
@click.argument("pair", default="tiny")
@click.option("--prompt", default=PROMPT, show_default=True, help="What to ask.")
@click.option("--keep", is_flag=True, help="Leave endpoint and sandbox running.")
def demo(pair: str, prompt: str, keep: bool) -> None:
    """Deploy PAIR in the sandbox, prove that it drafts, stream an answer, and clean up.

    Needs no AWS account, no GPU and no Docker. A pair too large for this machine is planned as
    it is and served by our tiny pair under the same settings.
    """
    try:
        _run("plan", pair, "--name", NAME)
        _run("deploy", pair, "--name", NAME, "--sandbox", "--yes")
        _run("invoke", NAME, prompt, "--stream", "--chat", "--sandbox")
        _run("status", NAME, "--sandbox")
    finally:
        if not keep:
            _run("destroy", NAME, "--sandbox", "--yes", must=False)
            _run("sandbox", "stop", must=False)
    if keep:
        say(f"Still running; remove with: peagle destroy {NAME} --sandbox && peagle sandbox stop")


def _run(*arguments: str, must: bool = True) -> None:
    click.secho(f"\n$ peagle {shlex.join(arguments)}", bold=True)
    code = subprocess.run([sys.executable, "-m", "toolkit.cli", *arguments], check=False).returncode
    if code and must:
        raise DemoFailed(f"the demo stopped at `peagle {arguments[0]}`", "its error is above")
