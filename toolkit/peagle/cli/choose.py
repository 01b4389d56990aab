"""``peagle catalog``, ``check``, ``fit`` and ``verdict``: which pairs there are; is one right, does
it fit, does it pay."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import Any

import click

from peagle.catalog import find_pair, load_catalog
from peagle.catalog.documents import Problem
from peagle.catalog.loading import check_catalog, check_catalog_file
from peagle.catalog.summary import describe_pair, summarize_target
from peagle.catalog.writing import Tables, entry_text, new_texts, write_texts
from peagle.checkpoints.models import Checkpoint
from peagle.checks import registry
from peagle.checks.report import HUB, CheckOptions
from peagle.cli import view
from peagle.cli.context import command_text, is_set
from peagle.cli.options import (
    catalog_of,
    command,
    command_catalog,
    complete_pair,
    here_option,
    option,
    output_option,
    print_and_refuse,
    yes_option,
)
from peagle.cli.plan_options import engine_options, given_options
from peagle.cli.project import CHOICE, ProjectCommand
from peagle.cli.session import Session, account_options, cloud_options, new_session
from peagle.cli.view.choose import (
    print_changes,
    print_check,
    print_fit,
    print_list,
    print_pair,
    print_verdict,
)
from peagle.data import data_folder
from peagle.errors import Fix, OptionMissing, Refused, UserError
from peagle.findings import errors
from peagle.fit.report import FitOptions, mildest
from peagle.planning.overrides import check_settings
from peagle.planning.runtime import DEFAULT_REGION
from peagle.planning.verdict import VerdictOptions, make_verdict
from peagle.project import EndpointChoice
from peagle.render.verdict_file import verdict_bytes
from peagle.store import write_output
from peagle.text import plain
from peagle.weights import own_target
from peagle.weights.layout import checkpoint_at


@click.group(epilog="Example: peagle catalog list")
def catalog() -> None:
    """List, show and check pairs of models; write an entry for another one.

    The catalogue consists of the bundled files, plus those in --catalog DIR.
    """


@command("peagle catalog list --json", name="list", of=catalog)
def list_pairs() -> None:
    """List all targets with their drafters."""
    loaded = command_catalog()
    targets = [summarize_target(loaded, target) for target in loaded.targets.values()]
    view.print_result({"targets": targets}, lambda _: print_list(targets))


@command("peagle catalog show gpt-oss-20b+eagle3", name="show", of=catalog)
@click.argument("pair", shell_complete=complete_pair)
def show_pair(pair: str) -> None:
    """Show everything that the catalogue holds about PAIR.

    PAIR is TARGET or TARGET+DRAFTER; TARGET alone means its default drafter.
    """
    loaded = command_catalog()
    catalog_pair = find_pair(loaded, pair)
    target = summarize_target(loaded, catalog_pair.target)
    document = plain(describe_pair(loaded, catalog_pair))
    view.print_result(document, lambda document: print_pair(document, target))


@command("peagle catalog check my-catalog/acme/chat-7b.yaml", name="check", of=catalog)
@click.argument(
    "paths", metavar="[PATH]...", nargs=-1, type=click.Path(exists=True, path_type=Path)
)
@click.pass_context
def check_catalog_files(ctx: click.Context, paths: tuple[Path, ...]) -> None:
    """Check the catalogue, or the files and folders PATH, and list all problems.

    Exits with 2 if there are problems.
    """
    catalog_folder = catalog_of(ctx)
    files: set[Path] = set()
    problems: list[Problem] = []
    for path in paths or (None,):
        if path is not None and path.is_file():
            checked, of_path = [path], check_catalog_file(path)
        else:
            checked, of_path = check_catalog(path or catalog_folder)
        files |= {file.resolve() for file in checked}
        problems += of_path
    problems = list(dict.fromkeys(problems))
    documents = [problem._asdict() for problem in problems]
    view.print_json({"files": len(files), "problems": documents})
    for problem in problems:
        view.print_line(f"{problem.text}{f' (fix: {problem.fix})' if problem.fix else ''}")
    view.print_status(f"files checked: {len(files)}, problems: {len(problems)}")
    ctx.exit(2 if problems else 0)


@command(
    "peagle catalog init Qwen/Qwen3-4B -o my-catalog",
    "peagle catalog init ./my/model --drafter ./my/head -o my-catalog/acme/chat-7b.yaml",
    name="init",
    of=catalog,
)
@click.argument("model")
@option("--drafter HEAD", "An EAGLE-3 or P-EAGLE head for it: folder, s3://..., Hub id.")
@option("-o --output FILE|DIR", "ORGANIZATION/MODEL.yaml, which is the entry's id, or the folder "
        "of a catalogue.  [default: print it]", "path")  # fmt: skip
@option("--force", "Replace the file.", bool)
@cloud_options
def init_entry(
    model: str, drafter: str | None, output: Path | None, force: bool, session: Session
) -> None:
    """Write a catalogue file for MODEL: a folder, s3://..., or an id on the Hub.

    Reads config.json and weight headers there, never the weights. What they do not say, such as
    the licence, has a comment that begins with "unknown:". `peagle --catalog DIR` uses the file.
    """

    def read(location: str) -> Checkpoint:
        session.start()
        return checkpoint_at(location, lambda: session.aws(session.region or DEFAULT_REGION))

    file = own_target.entry_file(model, output)
    if output is not None and file.exists() and not force:
        raise UserError(f"{file} exists", "use another -o, or add --force", code="file-exists")
    loaded = command_catalog()
    checkpoint, head = read(model), read(drafter) if drafter else None
    entry = own_target.new_entry(checkpoint, head, file, loaded.runtimes.default)
    text = entry_text(entry.target, entry.unknown, file)
    findings = own_target.entry_findings(entry, checkpoint, head, loaded)
    view.print_findings(findings, err=True)
    if output is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_output(file, text.encode())
    document = {
        "id": entry.target.id,
        "file": str(file) if output else None,
        "unknown": entry.reasons,
        "text": text,
        "findings": findings,
    }
    view.print_json(document)
    if output is None:
        view.print_text(text, nl=False)
    else:
        view.print_status(f"wrote {file}; unknown: {', '.join(entry.reasons)}")
        pair = "+".join(filter(None, (entry.target.short_name, entry.target.default_drafter)))
        words = ("peagle", "--catalog", str(file.parent.parent), "plan", pair)
        view.print_status("Next", command_text(words))


@command("peagle catalog refresh --prices --region eu-west-1", of=catalog)
@option("--images", "Images of vLLM, from the SageMaker SDK's table.", bool)
@option("--digests", "Digests of the images, from ECR.", bool)
@option("--prices", "Prices of hosting, from the Pricing API.", bool)
@option("--region regions", "Region of the prices; may be repeated.  [default: regions with a "
        "price in the catalogue]", multiple=True)  # fmt: skip
@option("--to DIR", "Folder for the tables.  [default: peagle --catalog DIR, else the bundled "
        "catalogue]", click.Path(file_okay=False, path_type=Path))  # fmt: skip
@option("--dry-run", "Show the changes and exit.", bool)
@yes_option
@account_options
@click.pass_context
def refresh(
    ctx: click.Context,
    /,
    session: Session,
    regions: tuple[str, ...],
    to: Path | None,
    dry_run: bool,
    **selected: bool,
) -> None:
    """Update the catalogue's images, digests and prices.

    Updates everything unless you select parts. Shows the changes and asks; with --json nothing is
    written without --yes. A part that cannot be read stays unchanged. Exits with 4 if AWS rejected
    a request or did not answer.
    """
    from peagle.aws.refresh import PARTS, Part, refresh_tables, table_changes  # imports boto3

    own_folder = ctx.find_root().params.get("catalog_folder")  # it may be empty
    if to is None and own_folder is None and session.sandbox:
        message = "responses of the sandbox must not go into the bundled catalogue"
        raise UserError(message, "add --to DIR")
    folder = to or Path(own_folder or data_folder("model_catalog"))
    loaded = load_catalog(folder)
    before = Tables(loaded.runtimes, loaded.instances)
    parts: list[Part] = [part for part in PARTS if selected[part]] or list(PARTS)
    session.start()
    if not regions:
        types = loaded.instances.instances
        priced = {price.region for instance in types for price in instance.prices}
        regions = tuple(sorted(priced or {DEFAULT_REGION}))
    first = cache(lambda: session.aws(regions[0]))  # the account is looked up once, when needed
    refreshed = refresh_tables(before, parts, regions, lambda region: first().in_region(region))
    failures = list(refreshed.failed.values())
    texts = new_texts(before, refreshed.tables)
    changes = tuple(table_changes(before, refreshed.tables))
    view.print_findings(refreshed.findings, err=True)
    print_changes(changes)
    written: list[Path] = []
    question = f"Write these changes to {folder}?"
    asks = not (is_set("yes") or view.wants_json())
    if texts and not dry_run and (is_set("yes") or (asks and view.confirmed(question))):
        written = write_texts(folder, texts)
    document = {
        "folder": str(folder),
        "changes": changes,
        "findings": refreshed.findings,
        "failed": list(refreshed.failed),
        "written": written,
    }
    view.print_json(document)
    if changes:
        view.print_status("\n".join(f"wrote {path}" for path in written) or "Nothing was written.")
    elif not failures:
        view.print_status("The catalogue is up to date; nothing to write.")
    if failures:
        raise failures[0]


@command(
    "peagle check gpt-oss-20b --target hf --drafter hf",
    "peagle check gpt-oss-20b --drafter ./my/head",
    "peagle check tiny --set enable-lora --speculative draft_tensor_parallel_size=1",
    "peagle check -e production --online",
    cls=ProjectCommand,
    instead=("list_rules",),
)
@click.argument("pair", required=False, shell_complete=complete_pair)
@engine_options(CheckOptions)
@option("--online", "Read target and drafter where the pair has them, on the Hub.", bool)
@option("--rules list_rules", "List the rules and what they prevent.", bool)
@option("--profile", "AWS profile for s3:// locations.")
@option("--sandbox", "Read s3:// locations from the sandbox.", bool)
@click.pass_context
def check(ctx: click.Context, /, pair: str | None, list_rules: bool, **options: Any) -> None:
    """Check PAIR: config.json and weight headers, versions, image and instance.

    Reads config.json and headers of models on this machine, never the weights; for other models,
    the catalogue's values are checked unless you give a location, or `hf`, the pair's own
    repository on the Hub. --set, --speculative and --env are checked as if they were added to a
    plan. Exits with 3 if there is an error.
    """
    if list_rules:
        rules = registry.list_rules()
        view.print_json({"rules": rules})
        rows = [(rule.code, rule.about, rule.vllm_notices, rule.guards) for rule in rules]
        return view.print_table(("rule", "about", "rejected by vLLM", "what it prevents"), rows)
    if pair is None:
        raise click.MissingParameter(ctx=ctx, param_hint="'PAIR'", param_type="argument")
    session = new_session(options["region"], options.pop("profile"), options.pop("sandbox"))
    if options.pop("online"):
        options |= _on_hub(ctx, pair, options["target"], options["drafter"])
    start = time.monotonic()
    if options["target"] is None:
        _refuse_unread(session, pair, ("peagle", "check", pair, "--target", HUB))
    report = session.check(pair, **options)
    view.print_result(report, lambda _: print_check(report, time.monotonic() - start))
    if errors(report.findings):
        ctx.exit(Refused.exit_code)
    return None


def _on_hub(
    ctx: click.Context, pair: str, target: str | None, drafter: str | None
) -> dict[str, str | None]:
    """Where ``--online`` reads the pair: where the user or ``model_source`` says, else the Hub."""
    choice: EndpointChoice | None = ctx.meta.get(CHOICE)
    source = choice.values.get("model_source") if choice else None
    loaded = command_catalog(ctx)
    if drafter is None and not own_target.is_own_target(loaded, pair):
        head = find_pair(loaded, pair).drafter
        drafter = HUB if head is not None and head.weights is not None else None
    return {"target": target or (str(source.value) if source else HUB), "drafter": drafter}


def _refuse_unread(session: Session, pair: str, command: tuple[str, ...]) -> None:
    """Raise NotFound, with the command that reads it, for a target that is only on the Hub."""
    if own_target.is_on_hub(pair) and own_target.is_own_target(session.catalog, pair):
        raise own_target.target_not_read(pair, command, session.catalog)


@command("peagle fit gpt-oss-20b --gpu-memory-gib 80 --max-model-len 32768")
@click.argument("pair", required=False, shell_complete=complete_pair)
@engine_options(FitOptions)
def fit(pair: str | None, **options: Any) -> None:
    """Estimate GPU memory and concurrent capacity: weights, working memory, KV cache.

    The memory model is that of plan and follows vLLM's own accounting. PAIR is optional if --target
    names a folder with a config.json. Options that are not given have the defaults of `vllm serve`;
    those of plan are --gpu-memory-utilization 0.9 and 8 requests. Exits with 3 if the pair does not
    fit, or if `peagle check` would reject it.
    """
    session = new_session()
    check_settings(options["settings"])
    if pair is not None and options["target"] is None:
        _refuse_unread(session, pair, ("peagle", "fit", "--target", pair))
    report = session.fit(pair, **given_options(options))
    view.print_result(report, print_fit)
    if report.refusal:
        view.print_findings(report.findings, title="Findings")
        fix = Fix("no single change helps")
        if best := mildest(report.advice):
            fix = Fix(f"use {best.option}", options=best.options)
        raise Refused(report.refusal, fix, code="does-not-fit")
    print_and_refuse(report.findings, err=False, title="Findings")


@command(
    "peagle verdict gpt-oss-20b --gpu H200",
    "peagle verdict gpt-oss-20b --gpu H100 --prompt-tokens 8k --output-tokens 500 -o verdict.json",
    "peagle plan gpt-oss-20b --concurrency 64 --verdict verdict.json",
)
@click.argument("pair", shell_complete=complete_pair)
@engine_options(VerdictOptions)
@here_option
@option("--acceptance FILE", "Result written by `peagle bench NAME --acceptance FILE "
        "--save-acceptance OUT`.", "file")  # fmt: skip
@option("--domain", "With --acceptance: of this domain only.", needs="--acceptance FILE")
@output_option("Write the verdict to this file, for --verdict of plan, deploy and render.")
def verdict(
    pair: str, acceptance: Path | None, domain: str | None, output: Path | None, **options: Any
) -> None:
    """Compare speculation by load: the fastest drafter and K, and where speculation stops paying.

    Compares the public drafters of PAIR, or the one that PAIR names, with every K and with no
    speculation, from measurements and the performance model; estimates of a drafter count only
    where none of its K is measured. Measured settings within 3 % tie, estimates within 2 %, and the
    simpler one wins. Speculation stops, or starts, paying where the best drafter and K passes the
    speed without speculation. Speeds are of one engine, and $/1M is at the price of its GPUs.
    """
    from peagle.bench.acceptance import with_text_acceptance

    if options["gpu"] is None and options["instance_type"] is None:
        raise OptionMissing("a verdict needs a GPU", "add --gpu such as H200, or --instance-type")
    asked = VerdictOptions(pair=pair, **given_options(options))
    loaded = command_catalog()
    if acceptance:
        loaded = with_text_acceptance(loaded, pair, acceptance, domain)
    made = make_verdict(asked, loaded)
    if output is not None:
        write_output(output, verdict_bytes(made))
        view.print_written(output)
    view.print_result(made, lambda _: print_verdict(made, output))
