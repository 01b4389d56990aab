"""Variables of the container and arguments of vLLM; what they let the engine read and run."""

from __future__ import annotations

import json

from peagle.case import Case
from peagle.checks.facts import destinations, is_aws_image
from peagle.checks.registry import Findings, error, note, rule, warning
from peagle.errors import Fix, nearest
from peagle.text import json_object
from peagle.vllm.defaults import CAPTURE_SIZE
from peagle.vllm.versions import (
    CHOICE,
    EITHER,
    NUMBER,
    ON_ONLY,
    SWITCH,
    WHOLE_NUMBER,
    EngineFacts,
    find_facts,
    first_version,
)
from peagle_serve.checks import (
    CONFIG_FILE,
    SAFE_FORMATS,
    code_variables,
    trusts_remote_code,
    unsafe_load_format,
)
from peagle_serve.contract import (
    HUB_ID,
    HUB_MODEL,
    LOAD_FORMAT,
    MODEL,
    PREFIX,
    SPECULATION,
    is_s3_uri,
)
from peagle_serve.environment import make_flag
from peagle_serve.logs import HIDDEN, Redactor, is_secret


def _name_option(variable: str) -> str:
    """The option that sets a variable of the container: ``--set NAME`` or ``--env NAME``."""
    is_argument = variable.startswith(PREFIX)
    return f"--set {make_flag(variable)[2:]}" if is_argument else f"--env {variable}"


def _fix(name: str, section: str, facts: EngineFacts) -> str:
    """What to do about a name that the section of the facts does not have."""
    if later := first_version(section, name, facts.version):
        return f"use vLLM {later} or later, or leave it out"
    return nearest(name, getattr(facts, section)) or "leave it out"


@rule("engine-argument", about="version", vllm_notices="at start")
def engine_argument(case: Case) -> Findings:
    """An argument that vLLM does not have, or that it announces to remove."""
    facts = find_facts(case.runtime.vllm)
    report = error if facts.exact else warning
    for name in sorted(case.settings):
        # ``no-`` turns an argument off; ``compilation-config.mode`` sets a key of one.
        plain = name.partition(".")[0].removeprefix("no-")
        if plain in facts.deprecated:
            message = f"vLLM {facts.version}: {facts.deprecated[plain]['is']}"
            yield note("vllm", message, f"leave --{plain} out")
        if plain in facts.arguments:
            continue
        message = f"--{name}: vLLM {facts.version} has no such argument"
        yield report("vllm", message, _fix(plain, "arguments", facts))


_NUMBERS: dict[str, tuple[type, ...]] = {WHOLE_NUMBER: (int,), NUMBER: (int, float)}


@rule("engine-value", about="version", vllm_notices="at start")
def engine_value(case: Case) -> Findings:
    """A value that an argument of vLLM does not take: for a switch, no choice of it, no number."""
    facts, eager = find_facts(case.runtime.vllm), case.settings.get("enforce-eager")
    for name, value in sorted(case.settings.items()) if facts.exact else ():
        plain, is_switch = name.removeprefix("no-"), isinstance(value, bool)
        argument = facts.arguments.get(plain, {})
        kind, choices = argument.get("kind", EITHER), argument.get("choices", ())
        expected = ""
        if kind == ON_ONLY and (name != plain or value is False):
            expected = "nothing: leave it out, since it is off by default"
        elif kind in (SWITCH, ON_ONLY) and not is_switch:
            expected = "true or false" if kind == SWITCH else "true"
        elif kind not in (SWITCH, ON_ONLY, EITHER) and is_switch:
            expected = "a value"
        elif kind == CHOICE and not is_switch and str(value) not in choices:
            expected = f"one of {', '.join(choices)}"
        elif kind in _NUMBERS and not isinstance(value, _NUMBERS[kind]):
            expected = "" if name == "gpu-memory-utilization" else f"a {kind}"
        elif name == CAPTURE_SIZE and isinstance(value, int) and value < 1 and not eager:
            expected = "1 or more; for no CUDA graphs set enforce-eager"
        if expected:
            message = f"--{name} {value}: vLLM {facts.version} refuses it at start"
            yield error("vllm", message, f"--{plain} takes {expected}")


_SAMPLING, _LOSSY = "rejection_sample_method", "fly"


@rule("speculative-setting", about="version", vllm_notices="at start")
def speculative_setting(case: Case) -> Findings:
    """A key, a value or a method of --speculative-config that vLLM does not have, or not with this
    drafter."""
    asked, drafter, vllm = case.speculative_settings, case.drafter, case.runtime.vllm
    sampling = asked.get(_SAMPLING)
    if sampling == _LOSSY:
        message = f"{_SAMPLING} {_LOSSY} is lossy: answers differ from those of the target alone"
        yield error("drafter", message, f"leave {_SAMPLING} out: the standard method is lossless")
    facts = find_facts(vllm)
    report = error if facts.exact else warning
    for key in sorted(asked.keys() - facts.speculative_keys.keys()):
        message = f"{key}: --speculative-config of vLLM {facts.version} has no such key"
        yield report("drafter", message, _fix(key, "speculative_keys", facts))
    if drafter is not None and drafter.method not in facts.speculative_methods:
        message = f"vLLM {facts.version} has no method {drafter.method}"
        yield report("drafter", message, "use an older vLLM version, or another drafter")
    usable = [name for name in facts.rejection_sample_methods if name != _LOSSY]
    if sampling not in (None, _LOSSY, *usable):
        message = f"{sampling!r}: vLLM {facts.version} does not have this {_SAMPLING}"
        yield report("drafter", message, f"leave it out, or use one of {', '.join(usable)}")


_LMI = ("OPTION_", "HF_MODEL_", "SERVING_", "LMI_", "DJL_")
"""Beginnings of the variables of AWS's LMI images."""

_VLLM = "VLLM_"


def _ignored_as(name: str, facts: EngineFacts) -> tuple[str, str] | None:
    """What the variable is, and the fix, if nothing in the image reads it."""
    if name.upper().startswith(_LMI):
        fix = "remove it: PAIR, --model-source, --drafter, --k and --set say what is served"
        return "a variable of AWS's LMI images", fix
    if name.startswith(_VLLM) and facts.exact and name not in facts.variables:
        argument = name.removeprefix(_VLLM).lower().replace("_", "-")
        as_argument = f"use --set {argument}=VALUE instead" if argument in facts.arguments else ""
        return f"no variable of vLLM {facts.version}", as_argument or _fix(name, "variables", facts)
    return None


_USE_OPTION = "remove it, or use the option in its place"


@rule("variable-ignored", about="version", vllm_notices="never", fix=_USE_OPTION)
def variable_ignored(case: Case) -> Findings:
    """A variable that nothing in the image reads: the setting that it means stays off, silently.

    vLLM ignores variables that its version does not have. AWS's LMI images (DJL Serving) have
    variables of their own; SageMaker's SDK sets OPTION_SPECULATIVE_DRAFT_MODEL also for other
    images, with which nothing is drafted.
    """
    facts = find_facts(case.runtime.vllm)
    for name in sorted(case.options.environment):
        if ignored := _ignored_as(name, facts):
            report = error if name.upper().startswith("OPTION_SPECULATIVE") else warning
            yield report("environment", f"{name} is {ignored[0]}: it is ignored", ignored[1])


@rule("code-variable", about="load", vllm_notices="never")
def code_variable(case: Case) -> Findings:
    """A variable or an argument that may choose the code that the engine loads."""
    facts = find_facts(case.runtime.vllm)
    for name in code_variables(case.variables):
        if name == CONFIG_FILE:
            message = "--config makes vLLM read arguments from a file, which no check has seen"
            yield error("environment", message, "set each argument of the file with --set")
        elif _ignored_as(name, facts) is None:
            code = "the code that the engine loads, which runs with the endpoint's role"
            fix = "unless you trust its author; an engine outside of a container refuses it"
            message = f"{_name_option(name)} may choose {code}"
            yield warning("environment", message, f"remove it, {fix}")


@rule("remote-code", about="load", vllm_notices="never")
def remote_code(case: Case) -> Findings:
    """The plan lets the engine run code from a model's repository (``trust_remote_code``)."""
    speculation = json.dumps(dict(case.speculative_settings), default=str)
    for name, value in {**case.variables, "speculative-config": speculation}.items():
        if trusts_remote_code(name, value):
            yield error(
                "vllm",
                f"{name} lets code from the model's repository run, with the execution role",
                "leave it out, and use a model that this vLLM version supports itself",
            )
            return


@rule("weights-format", about="load", vllm_notices="never")
def weights_format(case: Case) -> Findings:
    """A load format that reads something other than safetensors, such as pickles, which may run
    code."""
    speculation = {SPECULATION: json.dumps(dict(case.speculative_settings), default=str)}
    for name, value in {**speculation, **case.variables}.items():
        if name.startswith(PREFIX) and (load_format := unsafe_load_format(name, value)) is not None:
            flag = make_flag(name)
            where = "" if name == LOAD_FORMAT else f" in {flag}"
            yield error(
                "vllm",
                f"--load-format {load_format}{where} reads other files than safetensors, which may "
                "run code",
                f"leave it out, or use one of {', '.join(sorted(SAFE_FORMATS))}",
            )


@rule("secret-in-environment", about="load", vllm_notices="never")
def secret_in_environment(case: Case) -> Findings:
    """A secret among the container's variables or vLLM's arguments.

    Anyone who may call DescribeModel reads the environment; plan files and templates hold it
    too.
    """
    redactor = Redactor({})
    for name, value in case.variables.items():
        if value and (is_secret(name) or HIDDEN in redactor.text(value)):
            yield error(
                "environment",
                f"{_name_option(name)} is a secret, and DescribeModel shows it to readers",
                "leave it out: the execution role gives access to S3, and callers sign their "
                "requests; for gated weights use --model-source s3://...",
            )


@rule("log-stats-off", about="hardware", vllm_notices="never")
def log_stats_off(case: Case) -> Findings:
    """AWS's image with the engine's statistics off: deploy cannot prove the accepted drafts."""
    if case.drafter is None or not is_aws_image(case.options.image, case.runtimes):
        return
    level = case.options.environment.get("VLLM_LOGGING_LEVEL", "INFO").upper()
    off = {
        "--disable-log-stats": case.settings.get("disable-log-stats") is True,
        "VLLM_LOGGING_LEVEL": level not in ("DEBUG", "INFO"),
    }
    for setting in (name for name, is_off in off.items() if is_off):
        message = f"{setting} keeps vLLM's statistics, which prove the drafts, out of the log"
        where = "vllm" if setting.startswith("--") else "environment"
        yield error(where, message, f"leave {setting} out, or use --image with an own image")


@rule("isolated-container", about="load", vllm_notices="at start")
def isolated_container(case: Case) -> Findings:
    """Weights that a container without a network would have to download."""
    models = {
        "target": case.options.environment.get(MODEL) or case.options.environment.get(HUB_MODEL),
        "drafter": json_object(case.options.environment.get(SPECULATION)).get("model"),
    }
    for part, place in models.items() if case.options.network_isolation else ():
        if not isinstance(place, str):
            continue
        message = f"the engine downloads the {part} from {place}, which it cannot reach"
        if is_s3_uri(place):
            fix = Fix("mount the weights with weights_by mount, or omit network_isolation")
            yield error("network_isolation", message, fix)
        elif HUB_ID.fullmatch(place):
            command = ("peagle", "weights", "sync", "PAIR", "s3://BUCKET/PREFIX")
            sentence = "copy the pair to S3 and use --model-source, or use an image with weights"
            yield error("network_isolation", message, Fix(sentence, command))


@rule("vpc-routes", about="load", vllm_notices="never")
def vpc_routes(case: Case) -> Findings:
    """What a container in the user's own VPC must reach from its subnets."""
    s3, internet = destinations(case.options.environment, case.options.network_isolation)
    if case.options.subnets and (s3 or internet):
        gateways = ["a gateway endpoint for S3 in the route tables of the subnets"] if s3 else []
        gateways += ["a NAT gateway"] if internet else []
        names = " and ".join(filter(None, (s3, internet)))
        message = f"from the subnets, the container must reach {names}"
        yield note("subnets", message, f"it needs {', and '.join(gateways)}")
