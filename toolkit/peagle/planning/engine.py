"""How vLLM is started: its arguments, the container's environment, and what the rules say."""

from __future__ import annotations

from peagle.case import applicable, build_case, engine_settings
from peagle.catalog.schema import EngineSetting
from peagle.checks import check
from peagle.checks.facts import digest_in, needs_vocabulary
from peagle.errors import Refused
from peagle.options import Options
from peagle.planning.candidates import Candidate
from peagle.planning.load import PLANNED_GPU_MEMORY_UTILIZATION
from peagle.planning.plan import Decisions, Plan, Reason, reason
from peagle.planning.speculation import SelectedPair, speculative_config
from peagle.planning.weights import LOADER, pin_variables, streamer_variables
from peagle.vllm.defaults import CAPTURE_SIZE
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


def configure_engine(
    plan: Plan, options: Options, pair: SelectedPair, candidate: Candidate, decisions: Decisions
) -> Plan:
    """The plan with the engine's arguments and environment, and the rules' findings about them.

    Raises UserError for an environment that SageMaker rejects, and Refused for a secret in it: no
    plan, and so no plan file, ever contains one.
    """
    load = candidate.load
    arguments = _build_arguments(plan, options, candidate, decisions)
    extra = _build_environment(plan, options, candidate, decisions)
    streamed = streamer_variables(plan, options, pair, candidate, decisions)
    planned = to_environment(arguments) | extra | streamed
    if digest := digest_in(plan.runtime.image):
        # A container cannot know its own; `peagle warm` needs it.
        planned[IMAGE_DIGEST_VARIABLE] = digest
    left_out = {name for name, value in options.environment.items() if not value}
    planned |= options.environment | pin_variables(plan.pins)
    environment = {name: planned[name] for name in sorted({*planned} - left_out)}
    check_environment(environment)
    decided = {
        "k": candidate.k,
        # Planning shortens what the target does not support; the rules check the options.
        "max_model_len": options.max_model_len or plan.max_model_len,
        "vllm": plan.runtime.vllm,
        "concurrency": load.requests_per_engine,
        "instance_type": plan.instance_type,
        "region": plan.region,
        "image": plan.runtime.image,
        "ami": options.ami or plan.runtime.ami,
        "environment": environment,
    }
    if tokens := candidate.engine.graph_tokens:
        decided["settings"] = {**options.settings, CAPTURE_SIZE: str(tokens)}
    case = build_case(
        load.catalog,
        pair.target,
        pair.drafter,
        options.model_copy(update=decided),
        tensor_parallel_size=candidate.gpus,
    )
    findings = check(case)
    for finding in findings:
        if finding.code == "secret-in-environment":
            raise Refused(finding.message, finding.fix, finding.code)
    decisions.findings += findings
    return plan.model_copy(update={"engine_arguments": arguments, "environment": environment})


def _build_environment(
    plan: Plan, options: Options, candidate: Candidate, decisions: Decisions
) -> dict[str, str]:
    """Environment variables in addition to vLLM's arguments, without those that the user sets."""
    target, instance, reasons = candidate.load.target, candidate.instance, [_NO_RESTART]
    if instance.nvme_gb and any(weights.kind == "hub" for weights in plan.weights.values()):
        reasons.append(_HUB_HOME)
    if options.network_isolation:
        reasons.append(_OFFLINE)
        folder, file = plan.target.weights.engine_path, VOCABULARY_FILE
        if needs_vocabulary(target.architecture) and folder.startswith(ML_ROOT):
            reasons.append(reason(VOCABULARY_VARIABLE, folder, "isolated-vocabulary", file=file))
    settings = applicable(target.environment, instance.gpu_architecture, plan.runtime.vllm)
    reasons += [_setting_reason(setting.name, setting) for setting in settings]
    decisions.reasons += (each for each in reasons if each.what not in options.environment)
    return {because.what: because.value for because in reasons}


def _build_arguments(
    plan: Plan, options: Options, candidate: Candidate, decisions: Decisions
) -> tuple[str, ...]:
    """vLLM's argv without the program, with a reason for every setting of the catalogue."""
    load, weights, drafter = candidate.load, plan.target.weights, candidate.drafter
    architecture = candidate.instance.gpu_architecture
    settings = engine_settings(load.target, drafter, architecture, load.vllm, load.catalog.runtimes)
    values: dict[str, Value] = {name: setting.value for name, setting in settings.items()}
    reasons = {name: _setting_reason(f"--{name}", setting) for name, setting in settings.items()}
    if tokens := candidate.engine.graph_tokens:
        values[CAPTURE_SIZE] = tokens
        reasons[CAPTURE_SIZE] = reason(
            f"--{CAPTURE_SIZE}",
            tokens,
            "cuda-graphs-of-load",
            requests=load.requests_per_engine,
            turn=candidate.engine.for_turn,
        )
    if weights.streamed:
        values[_LOAD_FORMAT] = LOADER
        reasons[_LOAD_FORMAT] = reason(f"--{_LOAD_FORMAT}", LOADER, "weights-by-stream")
    overrides = options.settings
    for name in parse_values(overrides):
        values.pop(name, None)
    arguments = ["--model", weights.engine_path]
    if weights.revision is not None:
        arguments += ["--revision", weights.revision]
    arguments += [
        *("--served-model-name", load.target.id),
        *("--max-model-len", str(load.max_model_len)),
        *("--max-num-seqs", str(load.concurrency)),
        *("--tensor-parallel-size", str(candidate.gpus)),
    ]
    if _UTILIZATION not in {*values, *overrides}:
        arguments += [f"--{_UTILIZATION}", str(PLANNED_GPU_MEMORY_UTILIZATION)]
    decided = [because for name, because in reasons.items() if name in values]
    values |= {name: switch_or_text(text) for name, text in overrides.items() if text}
    for name, value in values.items():
        if isinstance(value, bool):
            arguments.append(f"--{name}" if value else f"--no-{name}")
        else:
            arguments += [f"--{name}", as_text(value)]
    if plan.speculation is not None:
        config = speculative_config(plan.speculation, plan.weights.get("drafter"))
        arguments += ["--speculative-config", config]
    decisions.reasons += decided
    return tuple(arguments)


def as_text(value: Value) -> str:
    """A value as text in an argv or an environment."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _setting_reason(what: str, setting: EngineSetting) -> Reason:
    """Its sentence is a text of the catalogue."""
    return reason(what, as_text(setting.value), "catalogue-setting", because=setting.because)
