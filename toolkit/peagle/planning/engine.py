"""How vLLM is started: its arguments, the container's environment, and what the rules say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from peagle.case import applicable, build_case, engine_settings, prefix_caching_with
from peagle.catalog.schema import EngineSetting
from peagle.catalog.tables import Runtime
from peagle.checks import check
from peagle.checks.facts import digest_in, needs_vocabulary
from peagle.errors import Refused
from peagle.fit.estimate import cache_layout
from peagle.options import Options
from peagle.planning.candidates import Candidate
from peagle.planning.load import PLANNED_GPU_MEMORY_UTILIZATION, Load
from peagle.planning.plan import Copies, Decision, Decisions, Reason, Speculation, reason
from peagle.planning.speculation import SelectedPair, choose_speculation, speculative_config
from peagle.planning.weights import (
    LOADER,
    PlacedWeights,
    WeightSizes,
    choose_pins,
    pin_variables,
    streamer_variables,
)
from peagle.vllm.defaults import CAPTURE_SIZE, NO_PREFIX_CACHING, PREFIX_CACHING, tokens_lost
from peagle.vllm.environment import (
    Value,
    check_environment,
    parse_values,
    switch_or_text,
    to_environment,
)
from peagle_serve.contract import (
    IMAGE_DIGEST_VARIABLE,
    ML_ROOT,
    VOCABULARY_FILE,
    VOCABULARY_VARIABLE,
)

# Of AWS's supervisor, model-hosting-container-standards.
_NO_RESTART = reason("PROCESS_AUTO_RECOVERY", "false", "crash-exits")
_HUB_HOME = reason("HF_HOME", "/tmp/huggingface", "downloads-to-nvme")  # nosec B108 # one user
_OFFLINE = reason("HF_HUB_OFFLINE", "1", "isolated-downloads")
_LOAD_FORMAT = "load-format"
_UTILIZATION = "gpu-memory-utilization"


@dataclass(frozen=True)
class Placement:
    """What is served, and on what: the engine, and the endpoint's operation, follow from it."""

    options: Options
    pair: SelectedPair
    load: Load
    candidate: Candidate
    name: str
    region: str
    runtime: Runtime
    image: str
    ami: str | None
    count: int
    copies: Copies | None
    placed: PlacedWeights
    sizes: WeightSizes


def configure_engine(
    placement: Placement, decisions: Decisions
) -> tuple[Speculation | None, tuple[str, ...], dict[str, str]]:
    """The engine's speculation, arguments and environment, with the rules' findings about them.

    Raises UserError for an environment that SageMaker rejects, and Refused for a secret in it: no
    plan, and so no plan file, ever contains one.
    """
    options, load, candidate = placement.options, placement.load, placement.candidate
    record, runtime = decisions.record, placement.runtime
    streamed = streamer_variables(placement.sizes, candidate, runtime, placement.region)
    speculation = choose_speculation(load, candidate)
    arguments = record(_build_arguments(placement, speculation))
    extra = record(_build_environment(placement))
    planned = to_environment(arguments) | extra | record(streamed)
    if digest := digest_in(placement.image):
        # A container cannot know its own; `peagle warm` needs it.
        planned[IMAGE_DIGEST_VARIABLE] = digest
    left_out = {name for name, value in options.environment.items() if not value}
    planned |= options.environment | pin_variables(choose_pins(options))
    environment = {name: planned[name] for name in sorted({*planned} - left_out)}
    check_environment(environment)
    decided = {
        "k": candidate.k,
        # Planning shortens what the target does not support; the rules check the options.
        "max_model_len": options.max_model_len or load.max_model_len,
        "vllm": runtime.vllm,
        "concurrency": candidate.load,
        "instance_type": candidate.instance.type,
        "region": placement.region,
        "image": placement.image,
        "ami": options.ami or placement.ami,
        "environment": environment,
    }
    if graphs := candidate.engine.graphs:
        decided["settings"] = {**options.settings, CAPTURE_SIZE: str(graphs.size)}
    case = build_case(
        load.catalog,
        placement.pair.target,
        placement.pair.drafter,
        options.model_copy(update=decided),
        tensor_parallel_size=candidate.gpus,
    )
    findings = check(case)
    for finding in findings:
        if finding.code == "secret-in-environment":
            raise Refused(finding.message, finding.fix, finding.code)
    decisions.findings += findings
    return speculation, arguments, environment


def _build_environment(placement: Placement) -> Decision[dict[str, str]]:
    """Environment variables in addition to vLLM's arguments, without those that the user sets."""
    options, placed, target = placement.options, placement.placed, placement.load.target
    instance, reasons = placement.candidate.instance, [_NO_RESTART]
    if instance.nvme_gb and any(w and w.kind == "hub" for w in (placed.target, placed.drafter)):
        reasons.append(_HUB_HOME)
    if options.network_isolation:
        reasons.append(_OFFLINE)
        folder, file = placed.target.engine_path, VOCABULARY_FILE
        if needs_vocabulary(target.architecture) and folder.startswith(ML_ROOT):
            reasons.append(reason(VOCABULARY_VARIABLE, folder, "isolated-vocabulary", file=file))
    settings = applicable(target.environment, instance.gpu_architecture, placement.load.vllm)
    reasons += [_setting_reason(setting.name, setting) for setting in settings]
    environment = {because.what: because.value for because in reasons}
    planned = (because for because in reasons if because.what not in options.environment)
    return Decision(environment, tuple(planned))


def _build_arguments(
    placement: Placement, speculation: Speculation | None
) -> Decision[tuple[str, ...]]:
    """vLLM's argv without the program, with a reason for every setting of the catalogue."""
    load, candidate, placed = placement.load, placement.candidate, placement.placed
    table, drafter = load.catalog.runtimes, candidate.drafter
    architecture = candidate.instance.gpu_architecture
    settings = engine_settings(load.target, drafter, architecture, load.vllm, table)
    values: dict[str, Value] = {name: setting.value for name, setting in settings.items()}
    reasons = {name: _setting_reason(f"--{name}", setting) for name, setting in settings.items()}
    if graphs := candidate.engine.graphs:
        values[CAPTURE_SIZE] = graphs.size
        reasons[CAPTURE_SIZE] = reason(
            f"--{CAPTURE_SIZE}", graphs.size, "cuda-graphs-of-load",
            requests=candidate.load, k=candidate.k, tokens=graphs.tokens,
            default=graphs.default, percent=round(100 * graphs.saved_share), turn=graphs.turn,
        )  # fmt: skip
    if placed.target.streamed:
        values[_LOAD_FORMAT] = LOADER
        reasons[_LOAD_FORMAT] = reason(f"--{_LOAD_FORMAT}", LOADER, "weights-by-stream")
    overrides = placement.options.settings
    for name in parse_values(overrides):
        values.pop(name, None)
    arguments = ["--model", placed.target.engine_path]
    if placed.target.revision is not None:
        arguments += ["--revision", placed.target.revision]
    arguments += [
        *("--served-model-name", load.target.id),
        *("--max-model-len", str(load.max_model_len)),
        *("--max-num-seqs", str(load.concurrency)),
        *("--tensor-parallel-size", str(candidate.gpus)),
    ]
    planned = {*values, *overrides}
    if _UTILIZATION not in planned:
        arguments += [f"--{_UTILIZATION}", str(PLANNED_GPU_MEMORY_UTILIZATION)]
    decided = [because for name, because in reasons.items() if name in values]
    values |= {name: switch_or_text(text) for name, text in overrides.items() if text}
    for name, value in values.items():
        if isinstance(value, bool):
            arguments.append(f"--{name}" if value else f"--no-{name}")
        else:
            arguments += [f"--{name}", as_text(value)]
    if speculation is not None:
        arguments += ["--speculative-config", speculative_config(speculation, placed.drafter)]
    if not {PREFIX_CACHING, NO_PREFIX_CACHING} & planned:
        decided += _prefix_caching_reasons(load, candidate)
    return Decision(tuple(arguments), tuple(decided))


def _prefix_caching_reasons(load: Load, candidate: Candidate) -> Iterator[Reason]:
    """Why it stays on, as by default in vLLM, with a drafter, and what a hit loses."""
    drafter = candidate.drafter
    caching = prefix_caching_with(load.target, drafter, load.vllm, load.catalog.runtimes)
    if caching is not None and drafter is not None:
        blocks = [group.block_tokens for group in cache_layout(candidate.engine.case).groups]
        yield reason(
            f"--{PREFIX_CACHING}",
            "true",
            "prefix-caching-works",
            says=caching.says,
            source=caching.source,
            tokens=tokens_lost(drafter.method, blocks),
            groups=len(blocks) if len(blocks) > 1 else None,
        )


def as_text(value: Value) -> str:
    """A value as text in an argv or an environment."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _setting_reason(what: str, setting: EngineSetting) -> Reason:
    """Its sentence is a text of the catalogue."""
    return reason(what, as_text(setting.value), "catalogue-setting", because=setting.because)
