"""Options of ``peagle check`` that say how the engine would be started.

What ``peagle check`` reports, and how it comes by it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any

import click

from peagle.case import ami_for
from peagle.catalog import find_drafter, find_pair, load_catalog, pair_name
from peagle.catalog.schema import DRAFTLESS, Catalog, Drafter, Pair
from peagle.checkpoints import Checkpoint
from peagle.checks import Case, make_case, rules_found
from peagle.checks import check as check_case
from peagle.checks.facts import stranger
from peagle.cli.locations import checkpoint_at, folder_hint, means_folder
from peagle.cli.options import catalog_of
from peagle.errors import NotFound, UserError
from peagle.findings import Finding
from peagle.planning.drafter import OWN, is_location, split_revision
from peagle.planning.engine_settings import engine_settings
from peagle.vllm.environment import Value, settings_in

_SAID_BY = {
    "num_speculative_tokens": "--k",
    "method": "PAIR, such as tiny+eagle3",
    "parallel_drafting": "PAIR, such as tiny+eagle3",
    "model": "--drafter",
}
"""Keys of ``--speculative-config`` that other options decide."""


@dataclass(frozen=True)
class Given:
    """vLLM's arguments without the dashes, keys of ``--speculative-config``, the environment."""

    settings: dict[str, Value]
    speculative: dict[str, object]
    environment: dict[str, str]
    on_cpu: bool


def setting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--engine``, ``--speculative``, ``--env`` and ``--cpu``; the command receives ``given``."""

    @wraps(command)
    def with_settings(
        *args: Any,
        engine: tuple[str, ...],
        speculative: tuple[str, ...],
        env: tuple[str, ...],
        cpu: bool,
        **rest: Any,
    ) -> Any:
        given = Given(
            settings={name: _scalar(value) for name, value in map(_argument, engine)},
            speculative=dict(_entry(word, "--speculative") for word in speculative),
            environment=dict(_pair(word, "--env") for word in env),
            on_cpu=cpu,
        )
        return command(*args, given=given, **rest)

    decorated: Callable[..., Any] = with_settings
    for option in (
        click.option("--cpu", is_flag=True, help="On vLLM for the CPU, as the sandbox runs it."),
        click.option(
            "--env",
            metavar="NAME=VALUE",
            multiple=True,
            help="Environment variable; SM_VLLM_* are vLLM's arguments, as in the container.",
        ),
        click.option(
            "--speculative",
            metavar="KEY=VALUE",
            multiple=True,
            help="A key of vLLM's --speculative-config that the pair does not set; repeatable.",
        ),
        click.option(
            "--engine",
            metavar="NAME[=VALUE]",
            multiple=True,
            help="An argument of vLLM, such as enable-lora or gpu-memory-utilization=0.9; "
            "repeatable.",
        ),
    ):
        decorated = option(decorated)
    return decorated


def _argument(word: str) -> tuple[str, object]:
    """``--enable-lora``, ``enable-lora`` or ``pipeline-parallel-size=2``."""
    name, equals, value = word.removeprefix("--").partition("=")
    if not name:
        raise UserError(f"--engine {word!r} names no argument", "write NAME or NAME=VALUE")
    return name.replace("_", "-"), _value(value) if equals else True


def _entry(word: str, flag: str) -> tuple[str, object]:
    name, value = _pair(word, flag)
    if name in _SAID_BY:
        raise UserError(f"{flag} {name} is set already", f"say it with {_SAID_BY[name]}")
    return name, _value(value)


def _pair(word: str, flag: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not name or not equals:
        raise UserError(f"{flag} {word!r} is no pair", "write NAME=VALUE")
    return name, value


def _value(text: str) -> object:
    """A value as JSON, else as text: ``2`` is a number, ``fp8`` is a word."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _scalar(value: object) -> Value:
    return value if isinstance(value, Value) else json.dumps(value)


HUB = "hf"
"""Says: the pair's own place on the Hugging Face hub."""

DEFAULT_AMI = "default"
"""Says: the AMI that SageMaker takes when none is named."""


@dataclass(frozen=True)
class Report:
    """What was found, and what was looked at for it."""

    pair: str
    case: Case
    findings: tuple[Finding, ...]
    read: tuple[Checkpoint, ...]
    rules: int
    seconds: float
    unread: str | None


def document(report: Report) -> dict[str, Any]:
    """The report as ``--json`` prints it."""
    return {
        "pair": report.pair,
        "vllm": report.case.runtime.vllm,
        "rules": report.rules,
        "read": [{"location": c.location, "bytes": c.bytes_read} for c in report.read],
        "findings": [finding.model_dump() for finding in report.findings],
    }


def report_of(ctx: click.Context, name: str, given: dict[str, Any]) -> Report:
    """Reads what is to be read and asks all rules. Raises what finding and reading raise."""
    start = time.monotonic()
    catalog = load_catalog(catalog_of(ctx))
    pair, place = _pair_check_report(catalog, name, given["drafter"])
    if place is not None and (pair.drafter is None or pair.drafter.method in DRAFTLESS):
        raise _no_head_wanted(pair, place)
    strangers = _strangers(catalog, pair, place)
    target = _read(ctx, catalog, pair, given["target"], pair.target)
    pair = _with_own_head(pair, place)
    # What is another target's head need not be read: its id says so.
    readable = pair.drafter is not None and not strangers
    drafter = _read(ctx, catalog, pair, place, pair.drafter) if readable else None
    case = _case(catalog, pair, given, target, drafter)
    read = tuple(checkpoint for checkpoint in (target, drafter) if checkpoint is not None)
    return Report(
        pair=_title(pair),
        case=case,
        findings=(*strangers, *check_case(case)),
        read=read,
        rules=len(rules_found()),
        seconds=time.monotonic() - start,
        unread=_unread(name, pair, target, drafter),
    )


def _pair_check_report(catalog: Catalog, name: str, drafter: str | None) -> tuple[Pair, str | None]:
    """The pair, and the head's place; ``--drafter`` may also name a drafter of the catalogue."""
    pair = find_pair(catalog, name)
    if drafter is None or drafter == HUB or means_folder(drafter):
        return pair, drafter
    try:
        known = find_drafter(pair.target, split_revision(drafter)[0])
    except NotFound as missing:
        if not is_location(drafter):
            raise NotFound(missing.message, folder_hint(drafter) or missing.fix) from missing
        return pair, drafter
    if "+" in name and pair.drafter != known:
        raise UserError(f"{name} and --drafter {drafter} name two drafters", "name one of them")
    # Its hub id was written: then it is to be read, too.
    return Pair(target=pair.target, drafter=known), drafter if "/" in drafter else None


def _title(pair: Pair) -> str:
    """The pair in full; with the user's own head, its place."""
    own = pair.drafter is not None and pair.drafter not in pair.target.drafters
    if own and pair.drafter is not None:
        return f"{pair.target.id}+{pair.drafter.weights}"
    return pair_name(pair.target, pair.drafter)


def _no_head_wanted(pair: Pair, place: str) -> UserError:
    """What is said of a head for a pair that would not use one."""
    how = f"{pair.drafter.name} drafts" if pair.drafter else f"{pair.target.short_name} is served"
    heads = (drafter.name for drafter in pair.target.drafters if drafter.method not in DRAFTLESS)
    names = ", ".join(f"{pair.target.short_name}+{name}" for name in heads)
    fix = f"leave --drafter out, or say how it is started: {names}"
    return UserError(f"{how} without a head, and --drafter {place} would not be used", fix)


def _with_own_head(pair: Pair, place: str | None) -> Pair:
    """The pair with what is known of the user's own head; nothing of it is the catalogue's."""
    head = pair.drafter
    if head is None or place is None or place == HUB or split_revision(place)[0] == head.weights:
        return pair
    own: dict[str, Any] = {"title": f"your own head {place}", "weights": place, "revision": None}
    if head.public:
        own |= {"name": OWN, "k_trained": None, "published": ()}
    return Pair(target=pair.target, drafter=head.model_copy(update=own))


def _read(
    ctx: click.Context, catalog: Catalog, pair: Pair, place: str | None, entry: Any
) -> Checkpoint | None:
    """What lies at ``place``, else beside the catalogue's file; ``None``: nothing to read here."""
    weights: str | None = entry.weights
    if place is None or place == HUB:
        if weights is None:
            if place == HUB:
                raise UserError(f"{entry.title} is not on the hub", "name a folder or s3://...")
            return None
        if weights.startswith("./"):
            folder = Path(catalog.origins[pair.target.id]).parent / weights
            return checkpoint_at(f"./{folder}" if not folder.is_absolute() else str(folder))
        if place is None:
            return None
        place = f"{weights}@{entry.revision}" if entry.revision else weights
    return checkpoint_at(place, lambda: _aws(ctx))


def _aws(ctx: click.Context) -> Any:
    """The AWS of ``--profile``, ``--sandbox`` or the environment; boto3 is loaded only here."""
    from peagle.cli.account import DEFAULT_REGION
    from peagle.cli.online import account_of

    account = account_of(ctx)
    account.start()
    return account.connect(ctx.params["region"] or DEFAULT_REGION)


def _case(
    catalog: Catalog,
    pair: Pair,
    given: dict[str, Any],
    target: Checkpoint | None,
    drafter: Checkpoint | None,
) -> Case:
    chosen: Given = given["given"]
    instance_type = given["instance_type"]
    case = make_case(
        catalog,
        pair.target,
        pair.drafter,
        k=given["k"],
        max_model_len=given["max_model_len"],
        vllm=given["vllm"],
        concurrency=given["concurrency"],
        target_checkpoint=target,
        own_target=given["target"] not in (None, HUB),
        drafter_checkpoint=drafter,
        instance_type=instance_type,
        region=given["region"],
        image=given["image"],
        tensor_parallel_size=given["tp"] or 1,
        on_cpu=chosen.on_cpu,
        speculative_settings=chosen.speculative,
        environment=chosen.environment,
    )
    return _hosted(case, given["ami"], chosen)


def _hosted(case: Case, ami: str | None, chosen: Given) -> Case:
    """The case with the AMI, and vLLM's arguments, that a plan would have."""
    gpu = case.instance.gpu_architecture if case.instance else ""
    planned = engine_settings(case.target, case.drafter, gpu, case.runtime.vllm)
    settings: dict[str, Value | None] = {name: each.value for name, each in planned.items()}
    settings |= settings_in(chosen.environment) | chosen.settings
    if ami is None and case.instance_type is not None:
        ami = ami_for(case.runtimes, case.runtime, case.instance_type)
    return replace(
        case,
        ami=None if ami == DEFAULT_AMI else ami,
        settings={name: value for name, value in settings.items() if value is not None},
    )


def _strangers(catalog: Catalog, pair: Pair, place: str | None) -> tuple[Finding, ...]:
    if place is None or place == HUB or means_folder(place):
        return ()
    found = stranger(split_revision(place)[0], pair.target, catalog)
    return (found,) if found else ()


def _unread(
    name: str, pair: Pair, target: Checkpoint | None, drafter: Checkpoint | None
) -> str | None:
    """What was not read, and in a second line how it would be; ``None`` when everything was."""
    missing = [] if target is not None else ["target"]
    head: Drafter | None = pair.drafter
    if head is not None and drafter is None and (head.weights or not head.public):
        missing.append("drafter")
    if not missing:
        return None
    places = {
        "target": HUB,
        "drafter": HUB if head is not None and head.weights else "PLACE",
    }
    words = " ".join(f"--{which} {places[which]}" for which in missing)
    return (
        f"the {' and the '.join(missing)}, whose numbers are the catalogue's; to read what lies "
        f"there:\npeagle check {name} {words}"
    )
