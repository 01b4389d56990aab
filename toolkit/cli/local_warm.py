"""``peagle warm --local``: what an engine of this machine compiled, kept on it."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path

import click

from toolkit.cli.console import print_json, say
from toolkit.cli.image_recipes import findings_here
from toolkit.cli.local_docker import docker_host
from toolkit.cli.options import command_words, peagle_words, refuse_errors
from toolkit.cli.waiting import StatusLine
from toolkit.cli.warm_ending import ended_politely
from toolkit.cli.warm_words import kept_document, print_kept, say_ended
from toolkit.errors import UserError
from toolkit.local import records
from toolkit.local.artefacts import warm_folder
from toolkit.local.hosts import Host, ProcessHost
from toolkit.local.warming import NAME_ENDS_WITH, collect
from toolkit.planning import Plan
from toolkit.planning.own_heads import is_s3


def keep_here(plan: Plan, engine_kind: str, gpus: bool, to: str | None, as_json: bool) -> None:
    """Collect from an engine of this machine into the folder ``to``, else into the toolkit's home.

    On a CPU the model is compiled for it, which it is not usually.
    """
    folder = _folder(to)
    refuse_errors(findings_here(plan, engine_kind))
    host = _host(plan, engine_kind, gpus)
    try:
        with ended_politely(), StatusLine() as status:
            artefact = collect(plan, host, folder, status.show)
    except KeyboardInterrupt:
        name = f"{plan.name}{NAME_ENDS_WITH}"
        engine = records.read(name)
        if engine is not None and engine.state != "dead":  # a second Ctrl-C
            say(f"Its engine still runs. End it: peagle local down {name}")
        else:
            say_ended("its engine has ended", _again(engine_kind, gpus, to))
        raise
    folder.chmod(0o755)  # the container's own user reads it
    if as_json:
        print_json(kept_document(plan.pair, artefact))
        return
    print_kept(artefact, "" if to else _next(engine_kind, gpus))


def _folder(to: str | None) -> Path:
    if to is None:
        return warm_folder()
    if is_s3(to):
        raise UserError(
            f"--to {to}: a start on this machine is kept on this machine",
            "leave out --local, and `peagle warm` stores one beside the weights in S3, made on the "
            "GPU that it is for",
        )
    folder = Path(to).expanduser().absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise UserError(f"nothing can be kept in {to}", "name a folder that you may write to")
    return folder


def _host(plan: Plan, engine_kind: str, gpus: bool) -> Host:
    if engine_kind == "docker":
        host = docker_host(plan, gpus, build_first=False)
        return replace(host, compiled=not gpus, collecting=True)
    if gpus:
        raise UserError("--gpus is for containers", "add --engine docker")
    return ProcessHost(compiled=True, collecting=True)


def _again(engine_kind: str, gpus: bool, to: str | None) -> str:
    """The command as it was given."""
    ctx = click.get_current_context()
    words = [*peagle_words(ctx), "warm", *command_words(ctx), "--local"]
    words += ["--engine", "docker"] if engine_kind == "docker" else []
    words += ["--gpus"] if gpus else []
    words += ["--to", to] if to else []
    return shlex.join(words)


def _next(engine_kind: str, gpus: bool) -> str:
    """The command that restores it, with the options that were given."""
    ctx = click.get_current_context()
    words = [*peagle_words(ctx), "local", "up", *command_words(ctx)]
    words += ["--engine", "docker"] if engine_kind == "docker" else []
    words += ["--gpus"] if gpus else ["--compile"]
    return shlex.join(words)
