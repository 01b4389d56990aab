"""``peagle doctor``, ``demo`` and ``explain``: what this machine has, what it can show, and what a
code of a finding or an error means."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import click

from peagle.catalog import load_catalog
from peagle.catalog.schema import Catalog
from peagle.catalog.tables import HERE
from peagle.cli import view
from peagle.cli.context import command_text, in_context
from peagle.cli.options import command, command_catalog, option
from peagle.data import data_folder
from peagle.engine.gpus import check_driver, this_machine_in, visible_gpus
from peagle.engine.machine import MachineCheck, find_engine, machine_checks
from peagle.errors import CatalogError, NotFound, PeagleError, Refused, command_line, nearest
from peagle.text import plain


@command("peagle doctor --json")
@click.pass_context
def doctor(ctx: click.Context, /) -> None:
    """Check what this machine has and lacks.

    Exits with 3 if something is missing: that `peagle demo` needs or, on GPUs, `peagle local up`.
    """
    from peagle.aws.client import find_credentials  # with boto3, which explain does not need

    wrong = list[MachineCheck]()
    try:
        catalog = command_catalog(ctx)
    except CatalogError as error:  # a file of --catalog: the machine is checked without that
        fix, command = error.fix or "correct the file", tuple(error.command)
        wrong = [MachineCheck("Catalogue", error.message, False, "--catalog", fix, command)]
        catalog = load_catalog()
    method = find_credentials()
    credentials = MachineCheck(
        "AWS credentials", f"found ({method})" if method else "there are none", bool(method),
        "deploying to AWS", "use --sandbox, or configure credentials", ("aws", "configure"),
    )  # fmt: skip
    on_gpus = tuple(_gpu_checks(catalog))
    checks = (*machine_checks(catalog.runtimes.default), credentials, *on_gpus, *wrong)
    documents = plain(checks)
    for document, check in zip(documents, checks, strict=True):
        document["command"] = None if check.fine else in_context(check.command) or None
        document["fix"] = "" if check.fine else check.fix
    view.print_json({"checks": documents})
    facts = []
    for check in checks:
        facts.append((f"{'ok' if check.fine else '--'} {check.what}", (check.found, "")))
        if not check.fine:
            needed = f"needed for {check.needed_for}: {check.fix}"
            facts.append(("", (needed, command_text(check.command))))
    view.print_facts(facts, indent=0, err=False)
    uses = ("engines", on_gpus[0].needed_for if on_gpus[0].fine else "demo")
    if any(not check.fine and check.needed_for in uses for check in checks):
        ctx.exit(Refused.exit_code)


def _gpu_checks(catalog: Catalog) -> Iterator[MachineCheck]:
    """The GPUs with their driver, the engine for them, and the targets that fit on them."""
    use, vllm = "local up on a GPU", catalog.runtimes.default
    try:
        gpus = visible_gpus()
        catalog = this_machine_in(catalog, gpus)
    except PeagleError as error:
        yield MachineCheck("GPUs", error.message, False, use, "use a machine with an NVIDIA GPU")
        return
    for gpu in gpus.gpus:
        memory = f"{gpu.memory_mib / 1024:.0f} GiB, {gpu.free_mib / 1024:.0f} GiB free"
        yield MachineCheck(f"GPU {gpu.index}", f"{gpu.name}, {memory}", True, use)
    try:
        engine = find_engine(vllm, gpu=True)
        check_driver(engine, gpus)
        yield MachineCheck("GPU engine", f"vLLM {vllm} in {engine.python}", True, use)
    except PeagleError as error:
        yield MachineCheck("GPU engine", error.message, False, use, error.fix, tuple(error.command))
    yield MachineCheck("Driver", f"{gpus.driver}, for CUDA {gpus.cuda}", True, use)
    from peagle.findings import errors  # explain and demo plan nothing
    from peagle.options import Options
    from peagle.planning import make_plan

    fitting = [
        target.short_name
        for target in catalog.targets.values()
        if not errors(make_plan(Options(pair=target.id, instance_type=HERE), catalog).findings)
    ]
    yield MachineCheck(
        "Fits on the GPUs", ", ".join(fitting) or "nothing of the catalogue", bool(fitting), use,
        "choose a smaller target, or a shorter --max-model-len",
    )  # fmt: skip


NAME = "peagle-demo"


@command("peagle demo --keep", json=False)
@click.argument("pair", default="tiny")
@option(
    "--prompt", "The prompt to send.", default="What does difflib.SequenceMatcher.get_opcodes do?"
)
@option("--keep", "Keep the endpoint and the sandbox running.", bool)
def demo(pair: str, prompt: str, keep: bool) -> None:
    """Deploy PAIR in the sandbox, prove that it speculates, stream an answer, and clean up.

    Needs no AWS account, no GPU and no Docker. If PAIR is too large for this machine, the sandbox
    serves the tiny pair with the settings of its plan. A sandbox that is already running is used
    and kept.
    """
    from peagle.sandbox.state import read_daemon

    was_running = read_daemon() is not None
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
        remove = command_text(("peagle", "destroy", NAME, "--sandbox"))
        remove += "" if was_running else f" && {command_text(('peagle', 'sandbox', 'stop'))}"
        view.print_status("The endpoint is still running. Remove it", remove)


def _run(*arguments: str, check: bool = True) -> None:
    click.secho(f"\n$ peagle {command_line(arguments)}", bold=True)
    code = subprocess.run([sys.executable, "-m", "peagle.cli", *arguments], check=False).returncode
    if code and check:  # its error is printed above
        click.get_current_context().exit(code)


def read_explanations() -> Iterator[dict[str, str | None]]:
    """The rows of all tables of docs/errors.md, with ``<>`` in place of Markdown's italics: code,
    heading (``about``), severity of a finding, cause and fix."""
    marks = re.compile(r"\\([\\`*_|<>\[\]])|\*(\w[^*|]*)\*")
    text = (data_folder("docs") / "errors.md").read_text(encoding="utf-8")
    about, headings = "", list[str]()
    for line in text.splitlines():
        if line.startswith("## "):
            about, headings = line.removeprefix("## "), []
        cells = [
            marks.sub(lambda mark: mark[1] or f"<{mark[2]}>", cell).strip()
            for cell in re.split(r"(?<!\\) ?\| ?", line)[1:-1]
        ]
        if not cells or set(cells[0]) <= {"-"}:
            continue
        if not headings:
            headings = cells
        elif code := re.match(r"`([^`]+)`", cells[0]):
            row = dict(zip(headings, cells, strict=False))
            cause = row.get("cause") if headings[0] != "cause" else None
            yield {
                "code": code[1], "about": about, "severity": row.get("severity"), "cause": cause,
                "fix": row.get("fix") or None,
            }  # fmt: skip


@command("peagle explain fc-width")
@click.argument("code")
def explain(code: str) -> None:
    """Show the cause and the fix of CODE: that of a finding, of an error with --json, or of an
    engine that ended.

    What only the case at hand knows is in the message itself.
    """
    every = list(read_explanations())
    rows = [row for row in every if row["code"] == code]
    if not rows:
        codes = dict.fromkeys(str(row["code"]) for row in every)
        fix = nearest(code, codes) or "docs/errors.md has all codes; AWS's own are in its docs"
        raise NotFound(f"there is no code {code!r}", fix, code="unknown-code")
    view.print_json({"code": code, "explanations": rows})
    for row in rows:
        view.print_line(f"{code}: {row['severity'] or row['about']}", bold=True)
        about = row["about"] if row["severity"] else ""
        facts = (("about", about), ("cause", row["cause"]), ("fix", row["fix"]))
        view.print_facts(((label, text or "") for label, text in facts), err=False)
