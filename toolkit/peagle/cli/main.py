"""The ``peagle`` command: a table of commands, loaded only when used, and one place for errors."""

from __future__ import annotations

import errno
import json
import os
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click

from peagle import __version__
from peagle.cli.output.console import TYPED_AT
from peagle.errors import PeagleError, nearest
from peagle.store import home

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("peagle.cli.demo:demo", "See a streamed P-EAGLE answer on this machine."),
    "catalog": ("peagle.cli.catalog:catalog", "List, show and check pairs of models."),
    "check": ("peagle.cli.check:check", "Find what is wrong with a pair, before it costs."),
    "fit": ("peagle.cli.fit:fit", "Reckon what one GPU holds, and how many requests fit."),
    "plan": ("peagle.cli.plan:plan", "Say what would run, where, at what price, and why."),
    "deploy": ("peagle.cli.deploy:deploy", "Put a pair into service and prove that it drafts."),
    "list": ("peagle.cli.list:listing", "List what deploy made."),
    "status": ("peagle.cli.status:status", "Show one deployment."),
    "logs": ("peagle.cli.logs:logs", "Show an endpoint's log."),
    "invoke": ("peagle.cli.invoke:invoke", "Ask an endpoint or a local engine."),
    "token": ("peagle.cli.token:token", "Print a key for the OpenAI-compatible address."),
    "destroy": ("peagle.cli.destroy:destroy", "Remove everything that deploy made."),
    "render": ("peagle.cli.render:render", "Write the plan as CloudFormation, Terraform, ..."),
    "image": ("peagle.cli.image:image", "Build, show and push container images."),
    "weights": ("peagle.cli.weights:weights", "Copy a pair's weights to S3, and see what lies."),
    "warm": ("peagle.cli.warm:warm", "Keep what an engine compiles, for quick starts."),
    "local": ("peagle.cli.local:local", "Run a plan on this machine, without AWS."),
    "sandbox": ("peagle.cli.sandbox:sandbox", "AWS on this machine, whose endpoints serve."),
    "engine": ("peagle.cli.engine:engine", "Install vLLM for this machine's CPU."),
    "doctor": ("peagle.cli.doctor:doctor", "Check what this machine has and lacks."),
}
"""Name -> (where the command is, what help says). The order is that of a first visit."""

NOT_TO_BE_WRITTEN = (errno.EACCES, errno.EDQUOT, errno.ENOSPC, errno.EPERM, errno.EROFS)
"""What a disk, a folder or its owner refuses: the user's to mend, so no traceback."""

_DIVIDED = "a plan takes as few GPUs as hold the load; name an --instance-type, or ask peagle fit"
ELSEWHERE: dict[str, str] = {
    "--tp": _DIVIDED,
    "--tensor-parallel-size": _DIVIDED,
    "--max-num-seqs": "it is --concurrency here",
    "--num-speculative-tokens": "it is --k here",
    "--target": "name the target first, or a catalogue of your own: peagle --catalog DIR",
    "--gpu-memory-utilization": "a catalogue entry sets the engine's arguments; ask peagle fit",
}
"""Options of vLLM and of other commands -> what to type instead."""

BROKEN_PIPE = 141
"""What a shell reports of a command whose reader has gone (128 + SIGPIPE)."""


class LazyGroup(click.Group):
    """A group that imports a command when it is called, not when help lists it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def make_context(self, *given: Any, **more: Any) -> click.Context:
        """Note when the command was typed, before anything is loaded for it."""
        ctx = super().make_context(*given, **more)
        ctx.meta[TYPED_AT] = time.time()
        return ctx

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. A reader that has left is met here, before click hides what happened;
        nothing more is written to it, not even what is still held back."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(BROKEN_PIPE)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            hint = nearest(args[0], COMMANDS)
            raise click.UsageError(f"No such command {args[0]!r}{': ' if hint else ''}{hint}", ctx)
        return super().resolve_command(ctx, args)

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

    Exit codes: 0 done, 2 wrong use, 3 refused by a check, 4 refused by AWS, a
    registry, the hub or the engine.
    """
    ctx.obj = catalog_folder


def main() -> NoReturn:
    """Run the command line; every PeagleError ends as one line and its exit code."""
    try:
        result = cli.main(prog_name="peagle", standalone_mode=False)
        sys.exit(result if isinstance(result, int) else 0)
    except PeagleError as error:
        _end_with(error)
    except click.exceptions.NoArgsIsHelpError as asked:
        click.echo(asked.format_message(), err=True)
        sys.exit(2)
    except click.NoSuchOption as error:
        _end(_unknown_option(error), 2)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "peagle"
        _end(f"{error.format_message()} (see {command} --help)", 2)
    except click.ClickException as error:
        _end(error.format_message(), 2)
    except (KeyboardInterrupt, click.Abort):
        _end("interrupted", 130)
    except OSError as error:
        if error.errno not in NOT_TO_BE_WRITTEN and not _concerns_home(error):
            raise
        fix = f" (PEAGLE_HOME is {home()})" if _concerns_home(error) else ""
        _end(f"cannot write {error.filename or 'the output'}: {error.strerror}{fix}", 2)
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):
            sys.exit(BROKEN_PIPE)
        raise


def _concerns_home(error: OSError) -> bool:
    """Whether the folder that all is kept in cannot be: PEAGLE_HOME names no such place, or a
    file."""
    if error.filename is None:
        return False
    file = Path(os.fsdecode(error.filename))
    below = error.errno == errno.ENOTDIR and file.is_relative_to(home())
    return below or home().is_relative_to(file)


def _unknown_option(error: click.NoSuchOption) -> str:
    """Which option is not known, and where it goes or what is called otherwise."""
    command = error.ctx.command_path if error.ctx else "peagle"
    if error.option_name == "--catalog":
        rest = command.removeprefix("peagle").strip()
        return f"--catalog goes before the command: peagle --catalog DIR {rest} ..."
    hint = ELSEWHERE.get(error.option_name, "")
    known = [name for name in error.possibilities or () if name != "--help"]
    if not hint and known:
        hint = f"did you mean {', '.join(sorted(known))}?"
    said = f"{command} has no option {error.option_name}{f': {hint}' if hint else ''}"
    return f"{said} (see {command} --help)"


def _end_with(error: PeagleError) -> NoReturn:
    """One line for people; with ``--json`` the error as one line of JSON on stderr."""
    if not error.as_json:
        _end(str(error), error.exit_code)
    click.echo(json.dumps({"error": error.document()}, ensure_ascii=False), err=True)
    sys.exit(error.exit_code)


def _end(message: str, code: int) -> NoReturn:
    click.echo(f"{click.style('error:', fg='red', bold=True)} {message}", err=True)
    sys.exit(code)
