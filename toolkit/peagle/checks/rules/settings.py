"""Variables of the container and arguments of vLLM; what they let the engine read and run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import get_close_matches

from peagle.case import Case
from peagle.checks.facts import destinations, is_aws_image, option_of
from peagle.checks.registry import Findings, error, note, rule, warning
from peagle.errors import Fix, nearest
from peagle.text import json_object
from peagle.vllm.facts import (
    CHOICE,
    EITHER,
    NUMBER,
    ON_ONLY,
    SWITCH,
    WHOLE_NUMBER,
    EngineFacts,
    facts_of,
    first_version,
)
from peagle.vllm.versions import in_range
from peagle_serve.checks import (
    CONFIG_FILE,
    SAFE_FORMATS,
    code_variables,
    trusts_remote_code,
    unsafe_load_format,
)
from peagle_serve.contract import (
    ANY,
    HUB_ID,
    HUB_MODEL,
    LOAD_FORMAT,
    ML_ROOT,
    MODEL,
    PREFIX,
    SPECULATION,
    WARM_PINS_VARIABLE,
    is_s3_uri,
)
from peagle_serve.environment import flag_of
from peagle_serve.logs import HIDDEN, Redactor, is_secret


@rule("engine-argument", about="version", vllm_notices="at start")
def engine_argument(case: Case) -> Findings:
    """An argument that vLLM does not have, or that it announces to remove.

    vLLM rejects an unknown argument at start, when the instance already costs money.
    """
    vllm, facts = case.runtime.vllm, facts_of(case.runtime.vllm)
    report = error if facts.exact else warning
    for name in sorted(case.settings):
        # ``no-`` turns an argument off; ``compilation-config.mode`` sets a key of one.
        plain = name.partition(".")[0].removeprefix("no-")
        if plain in facts.deprecated:
            message = f"vLLM {facts.version}: {facts.deprecated[plain]['is']}"
            yield note("vllm", message, f"leave --{plain} out")
        if plain in facts.arguments:
            continue
        later = first_version("arguments", plain, vllm)
        fix = f"use vLLM {later} or later, or leave it out" if later else ""
        message = f"--{name}: vLLM {facts.version} has no such argument"
        if not facts.exact:
            message += f"; {vllm} may not have it either"
        yield report("vllm", message, fix or nearest(plain, facts.arguments) or "leave it out")


@rule("engine-value", about="version", vllm_notices="at start")
def engine_value(case: Case) -> Findings:
    """A switch of vLLM with a value, or an argument that needs a value without one.

    vLLM's parser refuses both at start, when the instance already costs money.
    """
    facts = facts_of(case.runtime.vllm)
    for name, value in sorted(case.settings.items()) if facts.exact else ():
        plain = name.removeprefix("no-")
        kind = facts.arguments.get(plain, {}).get("kind", EITHER)
        if kind == ON_ONLY and (name != plain or value is False):
            fix = f"leave --{plain} out: it is off by default"
            yield error("vllm", f"--{plain} cannot be turned off", fix)
        elif kind in (SWITCH, ON_ONLY) and not isinstance(value, bool):
            message = f"--{name} has the value {value}; vLLM refuses it at start"
            values = "true or false" if kind == SWITCH else "true"
            yield error("vllm", message, f"write {values}, or leave it out")
        elif kind not in (SWITCH, ON_ONLY, EITHER) and isinstance(value, bool):
            fix = f"give it one: --{plain} VALUE"
            yield error("vllm", f"--{name} requires a value", fix)


_NUMBERS: dict[str, tuple[type, ...]] = {WHOLE_NUMBER: (int,), NUMBER: (int, float)}
_OF_ITS_OWN = "gpu-memory-utilization"
"""It has a rule of its own."""


@rule("engine-choice", about="version", vllm_notices="at start")
def engine_choice(case: Case) -> Findings:
    """A value that an argument of vLLM does not take: none of its choices, or no number.

    vLLM's parser refuses it at start, when the instance already costs money.
    """
    facts = facts_of(case.runtime.vllm)
    for name, value in sorted(case.settings.items()) if facts.exact else ():
        argument = facts.arguments.get(name, {})
        kind, choices = argument.get("kind"), argument.get("choices", ())
        # A switch's value is the matter of ``engine-value``.
        if isinstance(value, bool) or name == _OF_ITS_OWN:
            continue
        message = f"--{name} {value}: vLLM {facts.version} refuses it at start"
        if kind == CHOICE and str(value) not in choices:
            fix = nearest(str(value), choices) or f"use one of {', '.join(choices)}"
            yield error("vllm", message, fix)
        elif kind in _NUMBERS and not isinstance(value, _NUMBERS[kind]):
            yield error("vllm", message, f"use a {kind}")


_KNOWN = "known"
"""Value of the entry that lists the keys of all versions."""
_SETTINGS_FROM_WHEELS = ">=0.28.0"


@rule("speculative-setting", about="version", vllm_notices="at start")
def speculative_setting(case: Case) -> Findings:
    """A key or a method of --speculative-config that the vLLM version does not have.

    vLLM rejects it at start. Versions before 0.28.0 are in version_rules.yaml.
    """
    keys = set(case.speculative_settings)
    for entry in speculative_setting.entries(case):
        names = set(entry.names)
        lists_known = entry.value == _KNOWN
        for key in sorted(keys - names if lists_known else keys & names):
            fix = nearest(key, entry.names) if lists_known else ""
            yield speculative_setting.of_entry(entry, "drafter", key, fix)
        keys -= set() if lists_known else names
    vllm = case.runtime.vllm
    if not in_range(vllm, _SETTINGS_FROM_WHEELS):
        return
    facts = facts_of(vllm)
    report = error if facts.exact else warning
    for key in sorted(keys - facts.speculative_keys.keys()):
        later = first_version("speculative_keys", key, vllm)
        fix = f"use vLLM {later} or later, or leave it out" if later else ""
        message = f"{key}: --speculative-config of vLLM {facts.version} has no such key"
        yield report("drafter", message, fix or nearest(key, facts.speculative_keys) or "remove it")
    method = case.drafter.method if case.drafter else None
    if method is not None and method not in facts.speculative_methods:
        message = f"vLLM {facts.version} has no method {method}"
        yield report("drafter", message, "use an older vLLM version, or another drafter")


_METHOD = "rejection_sample_method"
_LOSSY = "fly"
_METHODS_FROM_WHEELS = ">=0.28.0"


@rule("rejection-sample-method", about="version", vllm_notices="at start")
def rejection_sample_method(case: Case) -> Findings:
    """A rejection_sample_method that is lossy, or that version or machine do not support.

    vLLM rejects what it does not support at start. It runs ``fly``, which accepts drafts that
    the target would not have written.
    """
    method = case.speculative_settings.get(_METHOD)
    if method is None:
        return
    entries = rejection_sample_method.entries(case)
    unknown = [entry for entry in entries if method not in entry.names]
    methods = facts_of(case.runtime.vllm).rejection_sample_methods
    usable = [name for name in methods if name != _LOSSY]
    if method == _LOSSY:
        message = f"{_METHOD} {_LOSSY} is lossy: answers differ from those of the target alone"
        yield error("drafter", message, f"leave {_METHOD} out: the standard method is lossless")
    elif unknown:
        yield rejection_sample_method.of_entry(unknown[0], "drafter", repr(method))
    elif in_range(case.runtime.vllm, _METHODS_FROM_WHEELS) and method not in usable:
        message = f"{method!r}: vLLM {case.runtime.vllm} does not have this {_METHOD}"
        yield error("drafter", message, f"leave it out, or use one of {', '.join(usable)}")
    elif method == "synthetic" and case.on_cpu:
        fix = f"leave {_METHOD} out on this machine"
        yield error("drafter", f"{_METHOD} synthetic does not run on a CPU", fix)


_OPTION, _VLLM = "OPTION_", "VLLM_"
_SPECULATIVE = "OPTION_SPECULATIVE"
_LMI = {
    _SPECULATIVE: "remove it; PAIR or --drafter names the drafter, and --k sets K",
    _OPTION: "remove it",
    "HF_MODEL_": "remove it: PAIR and --model-source name the model",
    "SERVING_": "remove it",
    "LMI_": "remove it",
    "DJL_": "remove it",
}
"""Variables of AWS's LMI images by their beginning, and the fix."""
_FIELDS = {
    "containerstartuphealthchecktimeout": "use startup_timeout",
    "modeldatadownloadtimeout": "use download_timeout",
    "inferenceamiversion": "use --ami",
    "initialinstancecount": "use --instance-count",
    "enablenetworkisolation": "use network_isolation",
    "volumesize": "leave it out: the plan's instances have their own volume",
    "routingconfig": "leave it out: the plan decides how requests are routed",
    "managedinstancescaling": "use --max-instances",
}  # fmt: skip
"""Fields of CreateEndpointConfig and CreateModel, without case, underscores and unit."""


@rule("variable-ignored", about="version", vllm_notices="never")
def variable_ignored(case: Case) -> Findings:
    """A variable that nothing in the image reads: the setting that it means stays off, silently.

    vLLM ignores variables that its version does not have. AWS's LMI images (DJL Serving) have
    variables of their own; SageMaker's SDK sets OPTION_SPECULATIVE_DRAFT_MODEL also for other
    images. Fields of the endpoint's variant are no variables of the container.
    """
    facts = facts_of(case.runtime.vllm)
    for name in sorted(case.environment):
        if not _is_ignored(name, facts):
            continue
        upper, field = name.upper(), _field(name)
        lmi = next((fix for start, fix in _LMI.items() if upper.startswith(start)), None)
        if lmi is not None:
            message = f"{name} is a variable of AWS's LMI images, and this one (vLLM) ignores it"
            if upper.startswith(_SPECULATIVE):
                yield error("environment", f"{message}: nothing is drafted", lmi)
                continue
            argument = upper.removeprefix(_OPTION).lower().replace("_", "-")
            if upper.startswith(_OPTION) and argument in facts.arguments:
                lmi = f"use --set {argument}=VALUE instead"
            yield warning("environment", message, lmi)
        elif field in _FIELDS:
            message = f"{name} is a setting of the endpoint; the container ignores it"
            yield warning("environment", message, _FIELDS[field])
        else:
            later = first_version("variables", name, case.runtime.vllm)
            argument = name.removeprefix(_VLLM).lower().replace("_", "-")
            meant = get_close_matches(name, facts.variables, 1, 0.85)
            fix = f"use vLLM {later} or later, or remove it" if later else "remove it"
            if argument in facts.arguments:
                fix = f"use --set {argument}=VALUE instead"
            elif meant and not later:
                fix = f"did you mean {meant[0]}?"
            message = f"vLLM {facts.version} has no variable {name} and ignores it"
            yield warning("environment", message, fix)


def _is_ignored(name: str, facts: EngineFacts) -> bool:
    """Whether nothing in the image reads the variable."""
    return (
        name.upper().startswith(tuple(_LMI))
        or _field(name) in _FIELDS
        or (name.startswith(_VLLM) and facts.exact and name not in facts.variables)
    )


def _field(name: str) -> str:
    return name.lower().replace("_", "").removesuffix("inseconds").removesuffix("ingb")


@rule("code-variable", about="load", vllm_notices="never")
def code_variable(case: Case) -> Findings:
    """A variable or an argument that may choose the code that the engine loads.

    The author of the plan then runs code in the container, with the endpoint's role.
    """
    facts = facts_of(case.runtime.vllm)
    for name in code_variables(case.variables):
        if _is_ignored(name, facts):
            continue
        if name == CONFIG_FILE:
            yield error(
                "environment",
                "--config makes vLLM read arguments from a file, which no check has seen and which "
                "may have come with the weights",
                "set each argument of the file with --set",
            )
            continue
        yield warning(
            "environment",
            f"{option_of(name)} may choose the code that the engine loads, which runs with the "
            "endpoint's role",
            "remove it, unless you trust its author; an engine outside of a container refuses it",
        )


@rule("remote-code", about="load", vllm_notices="never")
def remote_code(case: Case) -> Findings:
    """The plan lets the engine run code from a model's repository (``trust_remote_code``).

    Weights are data: vLLM's own model classes load them, and no code from their repository
    runs.
    """
    speculation = {"speculative-config": str(dict(case.speculative_settings))}
    for name, value in {**case.variables, **speculation}.items():
        if trusts_remote_code(name, value):
            yield error(
                "vllm",
                f"{name} lets code from the model's repository run, with the permissions of the "
                "execution role",
                "leave it out, and use a model that this vLLM version supports itself",
            )
            return


@rule("weights-format", about="load", vllm_notices="never")
def weights_format(case: Case) -> Findings:
    """A load format that reads something other than safetensors, such as pickles, which may run
    code.

    The header of a safetensors file is JSON, and the rest is numbers, so loading one runs no
    code.
    """
    speculation = {SPECULATION: json.dumps(dict(case.speculative_settings), default=str)}
    for name, value in {**speculation, **case.variables}.items():
        if name.startswith(PREFIX) and (load_format := unsafe_load_format(name, value)) is not None:
            flag = flag_of(name)
            what = (
                f"{flag} {load_format}"
                if name == LOAD_FORMAT
                else (f"the load format {load_format} in {flag}")
            )
            yield error(
                "vllm",
                f"{what} reads other files than safetensors, which may run code",
                f"leave it out, or use one of {', '.join(sorted(SAFE_FORMATS))}",
            )


_FIX = (
    "leave it out: the execution role gives access to S3, and callers sign their requests; for "
    "gated weights use --model-source s3://..."
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
            message = f"{option_of(name)} is a secret, and DescribeModel shows it to readers"
            yield error("environment", message, _FIX)


_TEMPLATE = "chat-template"
_EXAMPLE_TEMPLATES = ("examples/", "/vllm-workspace/examples/")
"""vLLM's own image has these; AWS's is built from it."""


@rule("chat-template-missing", about="load", vllm_notices="at start")
def chat_template_missing(case: Case) -> Findings:
    """A --chat-template that names a file which neither the image nor the weights have.

    vLLM takes a value without Jinja's braces as a path (0.28.0, entrypoints/chat_utils.py) and
    does not start where it cannot open it.
    """
    named = case.settings.get(_TEMPLATE)
    mounted = f"{ML_ROOT.rstrip('/')}/"
    of_aws = case.image is None or is_aws_image(case.image, case.runtimes)
    if not isinstance(named, str) or case.on_cpu or any(char in named for char in "{}\n"):
        return
    if named.startswith(mounted):
        message = f"--{_TEMPLATE} {named}: the weights must have this file, which is not checked"
        yield note("vllm", message, "copy it beside the target's config.json before you sync")
    elif of_aws and not named.startswith(_EXAMPLE_TEMPLATES):
        message = f"--{_TEMPLATE} {named}: the image of vLLM has no such file"
        fix = (
            f"put it beside the target's config.json and name it as {mounted}model/FILE, or use "
            "an image of your own that has it"
        )
        yield error("vllm", message, fix)


LONGEST_INTERVAL = 30.0
"""Seconds between two lines that a proof waits for."""


@rule("log-stats-off", about="hardware", vllm_notices="never")
def log_stats_off(case: Case) -> Findings:
    """AWS's image with the engine's statistics off: deploy cannot prove that drafts are accepted.

    That image exposes no counters, so the proof reads vLLM's lines of statistics in the
    endpoint's log.
    """
    if case.drafter is None or not is_aws_image(case.image, case.runtimes):
        return
    for where, setting in _switched_off(case):
        message = (
            f"{setting} keeps vLLM's statistics out of the log, from which deploy proves that "
            "drafts are accepted: AWS's image exposes no counters"
        )
        yield error(where, message, f"leave {setting} out, or use --image with an own image")


def _switched_off(case: Case) -> Iterator[tuple[str, str]]:
    """The settings that do so, each with where it is."""
    if case.settings.get("disable-log-stats") is True:
        yield "vllm", "--disable-log-stats"
    environment = case.environment
    if environment.get("VLLM_LOGGING_LEVEL", "INFO").upper() not in ("DEBUG", "INFO"):
        yield "environment", f"VLLM_LOGGING_LEVEL={environment['VLLM_LOGGING_LEVEL']}"
    if environment.get("VLLM_CONFIGURE_LOGGING", "1").strip() == "0":
        yield "environment", "VLLM_CONFIGURE_LOGGING=0"
    interval = environment.get("VLLM_LOG_STATS_INTERVAL", "")
    try:
        if float(interval or 0) > LONGEST_INTERVAL:
            yield "environment", f"VLLM_LOG_STATS_INTERVAL={interval}"
    except ValueError:
        return  # vLLM refuses it


@rule("warm-unpinned", about="load", vllm_notices="never")
def warm_unpinned(case: Case) -> Findings:
    """Any archive of compiled code next to the weights is restored, regardless of its author.

    An archive is code that the engine loads. A plan pins the SHA-256 of those that it may
    restore.
    """
    if case.environment.get(WARM_PINS_VARIABLE, "").strip() == ANY:
        yield warning(
            "environment",
            "a start restores any archive of compiled code next to the weights: anyone who may "
            "write there runs code in the endpoint",
            "omit --allow-unpinned-warm: deploy then pins the archives that are there",
        )


@rule("isolated-container", about="load", vllm_notices="at start")
def isolated_container(case: Case) -> Findings:
    """Weights that a container without a network would have to download.

    Network isolation leaves the container only what SageMaker mounts or the image contains.
    """
    if not case.network_isolation:
        return
    drafter = json_object(case.environment.get(SPECULATION)).get("model")
    models = {
        "target": case.environment.get(MODEL) or case.environment.get(HUB_MODEL),
        "drafter": drafter,
    }
    for part, place in models.items():
        if not isinstance(place, str):
            continue
        if is_s3_uri(place):
            message = f"the engine streams the {part} from {place}, which it cannot reach"
            fix = "mount the weights with weights_by mount, or omit network_isolation"
            yield error("network_isolation", message, fix)
        elif HUB_ID.fullmatch(place):
            message = f"the engine downloads the {part} from the Hub ({place}), out of its reach"
            yield error(
                "network_isolation",
                message,
                Fix(
                    "copy the pair to S3 and use --model-source, or use an image with weights",
                    ("peagle", "weights", "sync", "PAIR", "s3://BUCKET/PREFIX"),
                ),
            )


@rule("vpc-routes", about="load", vllm_notices="never")
def vpc_routes(case: Case) -> Findings:
    """What a container in the user's own VPC must reach from its subnets.

    SageMaker itself pulls the image, writes the log and answers requests, outside of the VPC.
    """
    if not case.in_vpc:
        return
    reached = destinations(case.environment, case.network_isolation)
    names = " and ".join(filter(None, (reached.s3, reached.internet)))
    if not names:
        return
    fix = "a gateway endpoint for S3 in the route tables of the subnets"
    if reached.internet:
        fix = f"{fix}, and a NAT gateway" if reached.s3 else "a NAT gateway"
    message = f"from the subnets, the container must reach {names}"
    yield note("subnets", message, f"it needs {fix}; deploy checks what it may look at")
