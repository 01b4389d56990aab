"""The ``peagle`` command: a table of commands, loaded only when used, and one place for errors."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import NoReturn

import click

from toolkit import __version__
from toolkit.errors import PeagleError

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("toolkit.cli.demo:demo", "See a streamed P-EAGLE answer on this machine."),
    "catalog": ("toolkit.cli.catalog:catalog", "List, show and check pairs of models."),
    "plan": ("toolkit.cli.plan:plan", "Say what would run, where, at what price, and why."),
    "deploy": ("toolkit.cli.deploy:deploy", "Put a pair into service and prove that it drafts."),
    "list": ("toolkit.cli.listing:listing", "List what deploy made."),
    "status": ("toolkit.cli.status:status", "Show one deployment."),
    "logs": ("toolkit.cli.logs:logs", "Show an endpoint's log."),
    "invoke": ("toolkit.cli.invoke:invoke", "Ask an endpoint."),
    "token": ("toolkit.cli.token:token", "Print a key for the OpenAI-compatible address."),
    "destroy": ("toolkit.cli.destroy:destroy", "Remove everything that deploy made."),
    "render": ("toolkit.cli.render:render", "Write the plan as CloudFormation, Terraform, ..."),
    "local": ("toolkit.cli.local:local", "Run a plan on this machine, without AWS."),
    "sandbox": ("toolkit.cli.sandbox:sandbox", "AWS on this machine, whose endpoints serve."),
    "engine": ("toolkit.cli.engine:engine", "Install vLLM for this machine's CPU."),
    "doctor": ("toolkit.cli.doctor:doctor", "Check what this machine has and lacks."),
}
"""Name -> (where the command is, what help says). The order is that of a first visit."""


class LazyGroup(click.Group):
    """A group that imports a command when it is called, not when help lists it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: peagle deploy tiny --sandbox --yes",
)
@click.version_option(__version__, prog_name="peagle")
@click.option(
    "--catalog",
    "catalog_folder",
    metavar="DIR",
    envvar="PEAGLE_CATALOG",
    type=click.Path(exists=True, file_okay=False),
    help="Folder with targets of your own, added to the bundled ones.  [env: PEAGLE_CATALOG]",
)
@click.pass_context
def cli(ctx: click.Context, catalog_folder: str | None) -> None:
    """Put large language models with P-EAGLE speculative decoding into production on SageMaker.

    PAIR is a target, or a target and a drafter: gpt-oss-20b, gpt-oss-20b+eagle3,
    openai/gpt-oss-20b+amazon/GPT-OSS-20B-P-EAGLE.

    Exit codes: 0 done, 2 wrong use, 3 refused by a check, 4 refused by AWS or the engine.
    """
    ctx.obj = catalog_folder


def main() -> NoReturn:
    """Run the command line; every PeagleError ends as one line and its exit code."""
    try:
        result = cli.main(standalone_mode=False)
        sys.exit(result if isinstance(result, int) else 0)
    except PeagleError as error:
        _end(str(error), error.exit_code)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "peagle"
        _end(f"{error.format_message()} (see {command} --help)", 2)
    except click.ClickException as error:
        _end(error.format_message(), 2)
    except (KeyboardInterrupt, click.Abort):
        _end("interrupted", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _end(message: str, code: int) -> NoReturn:
    click.echo(f"{click.style('error:', fg='red', bold=True)} {message}", err=True)
    sys.exit(code)
