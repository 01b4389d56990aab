"""What the user requests of a plan: the one model from which the command line, the keys of
``peagle.yaml``, the keywords of the library and the argv of a printed command come.

A field is written once, with its ``Flag``. The command line is made of them in
``peagle.cli.plan_options``; ``arguments`` is the way back.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from peagle.checkpoints import Checkpoint
from peagle.errors import OutOfRange
from peagle.frozen import Frozen
from peagle.text import exact_duration
from peagle.workload import PRESETS, Slo, WorkloadName

RolloutKind = Literal["rolling", "canary", "linear", "all-at-once"]
"""How an update moves traffic to its new instances."""

AUTO: Final = "auto"
"""As many copies of the engine on an instance as its GPUs and the load allow."""

LONGEST_CAPTURE_DAYS = 36_500
MOST_COUNT = 2**31 - 1
"""The most tokens, requests or instances of an option: vLLM's and AWS's own limits are lower."""

DEFAULT_REGION = "us-east-1"
REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")

ONLY_DEPLOY = "allow_unpinned_warm"
"""An option of ``peagle deploy`` alone: nothing in a file may open it for good."""

ValueKind = Literal[
    "text", "switch", "choice", "count", "number", "k", "copies", "tokens", "requests", "batch",
    "percent", "days", "usd", "speed", "load", "duration", "hours", "slo", "ids", "texts",
    "settings", "variables", "tags", "share", "gib", "dtype", "loads", "speculative",
]  # fmt: skip
"""How the value of a field is written on a command line."""

GROUPS = ("Load", "Speculation", "Instances", "Engine", "Updates and end", "Monitoring", "Company")
"""The headings of ``--help``, in its order."""


class Flag(NamedTuple):
    """How a field is an option. ``name`` is the option without dashes, by default the field's, or
    several with blanks between them. ``in_file``: it is a key of ``peagle.yaml`` and a keyword of
    the library, and no option. ``variables`` of the environment set it too."""

    group: str
    kind: ValueKind
    help: str
    metavar: str | None = None
    name: str | None = None
    in_file: bool = False
    variables: str | tuple[str, ...] | None = None


def _option(group: str, kind: ValueKind, help: str, metavar: str | None = None, **flag: Any) -> Any:
    """A field of Options with its Flag, and its ``default``; a switch is off by default."""
    default = flag.pop("default", False if kind == "switch" else None)
    extra = {"group": group, "kind": kind, "metavar": metavar, **flag}
    return Field(default=default, description=help, json_schema_extra=extra)


_load, _speculation, _instances, _engine, _updates, _monitoring, _company = (
    partial(_option, group) for group in GROUPS
)
_key = partial(_option, in_file=True)


class Overrides(Frozen):
    """What the user sets in place of the plan: ``settings`` are vLLM's arguments without dashes,
    ``environment`` the container's variables (an empty value leaves one out), ``ami`` the host AMI
    (``default``: SageMaker's). Timeouts are seconds."""

    settings: dict[str, str] = {}
    environment: dict[str, str] = {}
    ami: str | None = None
    startup_timeout: int | None = None
    download_timeout: int | None = None


_PRESETS = "; ".join(
    f"{name}: {size.prompt_tokens:,} + {size.output_tokens:,}"
    + (f", {size.cached_text}" if size.cached_prompt_tokens else "")
    for name, size in PRESETS.items()
)


class Options(Frozen):
    """The options of ``peagle plan``. ``None`` means that planning decides, and gives a reason.

    Times are seconds, prices USD, speeds output tokens per second of the whole endpoint. The last
    three fields are not the user's: ``drafter_checkpoint`` and ``target_checkpoint`` are files of a
    head or target that the catalogue does not have, ``fitting_length`` is the longest default
    context that fits.
    """

    pair: str
    speculation: bool = _speculation(
        "switch", "Serve the target alone.", default=True, name="no-speculation"
    )
    drafter: str | None = _speculation(
        "text", "Drafter in the catalogue, or your own head: s3://..., Hub id, folder."
    )
    name: str | None = _instances("text", "Name of the endpoint.  [default: derived from the pair]")
    instance_type: str | None = _instances(
        "text",
        "SageMaker instance type; here: the GPUs of this machine.  "
        "[default: the lowest cost per token]",
    )
    instance_count: int | None = _instances(
        "count", "Number of instances.  [default: as many as the load needs]"
    )
    copies: int | Literal["auto"] | None = _instances(
        "copies",
        "Engines on each instance, as an inference component; auto: as many as cost least per "
        "token, or one on all GPUs; 1: one, without a component.  [default: auto]",
    )
    min_tokens_per_second: float | None = _load(
        "speed", "Required output tokens per second of the whole endpoint, at --concurrency."
    )
    max_price_per_hour: float | None = _load("usd", "Maximum total price per hour.")
    k: int | None = _speculation(
        "k", "Tokens drafted per step.  [default: the fastest, or the model card's]"
    )
    max_model_len: int | None = _load(
        "tokens", "Longest context, in tokens, such as 8192 or 8k (1k is 1,024)."
    )
    concurrency: int | None = _load("requests", "Concurrent requests in all; 8 without --requests.")
    workload: WorkloadName | None = _load(
        "choice", f"Size of requests in tokens ({_PRESETS}).  [default: single prompts]"
    )
    prompt_tokens: int | None = _load(
        "tokens", "Tokens of a prompt.  [default: 2048, or what fits]"
    )
    cached_prompt_tokens: int | None = _load(
        "tokens", "Tokens of the prompt that an earlier turn has left in the prefix cache."
    )
    shared_prompt_tokens: int | None = _key(
        "Load",
        "tokens",
        "Of the cached tokens, those with which all prompts begin: instructions, tools.",
    )
    output_tokens: int | None = _load(
        "tokens", "Tokens of an answer.  [default: 256, or what fits]"
    )
    requests: int | None = _load(
        "batch", "Plan a batch of so many requests, such as 1m: the lowest total cost decides."
    )
    within: int | None = _load(
        "duration", "With --requests: finish the batch in this time, such as 8h."
    )
    slo: Slo | None = _load(
        "slo", "Longest mean times in seconds: ttft=0.5,itl=0.02 (first token, next output)."
    )
    model_source: str | None = _engine(
        "text", "s3:// prefix that holds the target's weights.  [default: the Hub]"
    )
    weights_by: Literal["mount", "stream"] = _key(
        "Engine",
        "choice",
        "How weights in S3 reach the engine: mount (SageMaker copies them) or stream (vLLM "
        "reads S3 at startup).  [default: mount]",
        default="mount",
    )
    vllm: str | None = _engine("text", "vLLM version.  [default: the catalogue's]")
    image: str | None = _engine("text", "Container image.  [default: AWS's image of that version]")
    baked_weights: bool = _engine("switch", "--image contains the weights; mount none.")
    settings: dict[str, str] = _engine(
        "settings",
        "An argument of vLLM in place of the plan's; an empty VALUE leaves one out.",
        default={},
        name="set",
    )
    environment: dict[str, str] = _engine(
        "variables",
        "A variable of the container; not for secrets, which DescribeModel shows.",
        default={},
        name="env",
    )
    ami: str | None = _engine(
        "text",
        "Host AMI, which determines the GPU driver; `default` is SageMaker's own.  "
        "[default: the AMI that the image requires]",
    )
    startup_timeout: int | None = _key(
        "Engine",
        "duration",
        "Time for the engine to start, such as 30m; 1h at most.  [default: from the weights]",
    )
    download_timeout: int | None = _key(
        "Engine", "duration", "Time for SageMaker to copy weights from S3, such as 30m; 1h at most."
    )
    warm_sha256: tuple[str, ...] = _key(
        "Engine",
        "texts",
        "Archives of `peagle warm` that starts may restore.  [default: those next to the "
        "weights when deploying]",
        default=(),
    )
    allow_unpinned_warm: bool = _engine(
        "switch", "Restore any archive next to the weights: anyone who may write there runs code."
    )
    rollout: RolloutKind | None = _updates(
        "choice",
        "How updates move traffic to new instances, with alarms that undo them; the one on "
        "--slo ttft sees streamed requests only.  [default: SageMaker's, without alarms]",
    )
    rollout_step: int | None = _key(
        "Updates and end",
        "count",
        "Instances, or copies, of one step.  [default: 5% of them, canary 10%, linear 25%]",
    )
    baking_time: int | None = _key(
        "Updates and end",
        "duration",
        "Time for alarms to act after each step; 1h at most.  [default: 10m]",
    )
    ttl: int | None = _updates(
        "hours",
        "Delete the endpoint after this time, such as 8h or 2d, counted from this deploy: "
        "deploying again with --ttl moves the end, without it keeps it.",
    )
    budget: float | None = _updates(
        "usd",
        "Delete the endpoint when it would have cost this much from this deploy on: now + budget "
        "/ price per hour of the most instances. With --ttl, the earlier end counts. A later "
        "deploy or scale to a higher price moves the end to an earlier time, never to a later one.",
    )
    no_limit: bool = _updates("switch", "Remove the end time of an earlier deploy.")
    observe: bool = _monitoring(
        "switch",
        "Create a CloudWatch dashboard and alarms, and keep the endpoint's log for 30 days "
        "only. The alarm on --slo ttft sees streamed requests only.",
    )
    log_retention: int | None = _key(
        "Monitoring",
        "days",
        "How long CloudWatch keeps the endpoint's log.  [default: 30 with --observe]",
    )
    alarm_topic: str | None = _key(
        "Monitoring", "text", "SNS topic that the alarms of --observe and --rollout notify.", "ARN"
    )
    capture_data: str | None = _monitoring(
        "text",
        "Copy prompts and answers to this s3:// folder (SageMaker's data capture).",
        "S3_URI",
    )
    capture_percent: int | None = _key(
        "Monitoring", "percent", "Share of the requests to capture.  [default: 100]"
    )
    capture_kms_key: str | None = _key(
        "Monitoring",
        "text",
        "KMS key for captured data.  [default: kms_key, else S3's own key]",
        "KEY",
    )
    capture_retention: int | None = _key(
        "Monitoring",
        "days",
        "When S3 deletes captured data; 0: when the bucket's own rules do.  [default: 30]",
    )
    region: str | None = _instances(
        "text",
        f"AWS region.  [env: AWS_REGION; default: {DEFAULT_REGION}]",
        variables=REGION_VARIABLES,
    )
    min_instances: int | None = _instances(
        "number", "Fewest instances of an endpoint that scales.  [default: 1]"
    )
    max_instances: int | None = _instances(
        "count",
        "Scale automatically, up to this many instances; with --copies, the copies on them.",
        "N",
    )
    target_concurrency: float | None = _key(
        "Instances",
        "load",
        "Requests at a time that scaling gives each instance, or each copy.  [default: the "
        "most that meet --slo without queueing, from the performance model]",
    )
    scale_to_zero: bool = _instances(
        "switch",
        "Run no instance while there are no requests; the first one then waits. Makes an "
        "inference component, also for a single copy.",
    )
    subnets: tuple[str, ...] = _key(
        "Company", "ids", "Subnets of your VPC that containers are attached to.", default=()
    )
    security_groups: tuple[str, ...] = _key("Company", "ids", "Their security groups.", default=())
    network_isolation: bool = _key(
        "Company",
        "switch",
        "Containers without any network; weights come from S3 or the image.",
        default=False,
    )
    kms_key: str | None = _key(
        "Company", "text", "KMS key (ARN, id or alias) of storage volumes and uploads.", "KEY"
    )
    tags: dict[str, str] = _company(
        "tags",
        "A tag on everything that is created. Repeatable.  [env: PEAGLE_TAGS, with commas]",
        default={},
        name="tag",
    )
    name_prefix: str = _key(
        "Company",
        "text",
        "Beginning of the names of what is created.  [default: peagle-]",
        "TEXT",
        default="",
    )
    permissions_boundary: str | None = _key(
        "Company", "text", "Policy that bounds roles that are created.", "ARN"
    )
    fitting_length: int | None = None
    drafter_checkpoint: Checkpoint | None = None
    target_checkpoint: Checkpoint | None = None

    @property
    def overrides(self) -> Overrides:
        """What the user sets in place of the plan."""
        return Overrides(**{name: getattr(self, name) for name in Overrides.model_fields})

    @property
    def recorded(self) -> Self:
        """Without what was read or chosen for the user: the form that a plan keeps."""
        return self.model_copy(update=dict.fromkeys(_NOT_RECORDED))

    @model_serializer(mode="wrap")
    def _write_what_is_set(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written, fields = write(self), Options.model_fields  # in the order of the fields
        return {
            name: written[name] for name in fields if getattr(self, name) != fields[name].default
        }


_NOT_RECORDED = ("fitting_length", "drafter_checkpoint", "target_checkpoint")

engine_option = partial(_option, "Options")
"""A field of EngineOptions, which a plan does not have."""


class EngineOptions(Options):
    """Options of a command about one engine, not about an endpoint. ``TAKES`` are the fields that
    it has, in the order of ``--help``. ``target`` is where its config.json and weights are read."""

    TAKES: ClassVar[tuple[str, ...]] = ()

    pair: str = ""
    target: str | None = engine_option(
        "text", "Target: folder, s3://... or Hub id; for check also hf, the pair's own.", "LOCATION"
    )
    drafter: str | None = engine_option(
        "text", "Head: folder, s3://... or Hub id; for check also hf, the pair's own.", "LOCATION"
    )
    k: int | None = engine_option("count", "Tokens drafted per step.  [default: the model card's]")
    tensor_parallel_size: int | None = engine_option(
        "count",
        "GPUs per model; a verdict has by default those of a plan, or the fewest with --gpu.",
        name="tp tensor-parallel-size",
    )


def read_flags(kind: type[Options] = Options) -> Iterator[tuple[str, Flag]]:
    """The fields that are options, with their flags."""
    takes = kind.TAKES if issubclass(kind, EngineOptions) else ()
    for name in takes or kind.model_fields:
        field = kind.model_fields[name]
        if isinstance(field.json_schema_extra, dict):
            settings: dict[str, Any] = dict(field.json_schema_extra)
            if settings["group"] == "Company":
                settings["variables"] = f"PEAGLE_{name.upper()}"
            if takes:
                settings |= {"group": "Options", "in_file": False}
            yield name, Flag(help=field.description or "", **settings)


_COUNTS = ("count", "k", "copies", "tokens", "requests", "batch")
_AMOUNTS = ("speed", "usd", "load", "gib")
_FROM_ZERO = ("cached_prompt_tokens", "shared_prompt_tokens")


def check_numbers(options: Options) -> None:
    """Raise OutOfRange for a number that means nothing: a keyword of the library may be any."""
    for name, flag in read_flags(type(options)):
        value = getattr(options, name)
        shown = name if flag.in_file else max(option_names(name, flag), key=len)
        if flag.kind in _COUNTS and isinstance(value, int):
            least = 0 if name in _FROM_ZERO else 1
            if not least <= value <= MOST_COUNT:
                fix = f"use {least} to {MOST_COUNT:,}"
                raise OutOfRange(f"{shown} {value} is out of range", fix)
        elif flag.kind in _AMOUNTS and value is not None and not 0 < value < math.inf:
            raise OutOfRange(f"{shown} {value:g} is out of range", "use a number above 0")


def read_keywords(kind: type[Options]) -> dict[str, str]:
    """The keywords of the library, each with its field: any name of the option, with
    underscores."""
    keywords = {"pair": "pair"}
    for field, flag in read_flags(kind):
        names = () if field == "speculation" else (flag.name or "").replace("-", "_").split()
        keywords |= dict.fromkeys((field, *names), field)
    return keywords


def option_names(field: str, flag: Flag) -> list[str]:
    """``--max-model-len``."""
    return [f"--{name}" for name in (flag.name or field.replace("_", "-")).split()]


_TEXTS: dict[str, Callable[[Any], str]] = {
    "duration": lambda seconds: f"{seconds}s",
    "hours": exact_duration,
    "slo": lambda slo: str(slo.text),
    "loads": lambda loads: ",".join(map(str, loads)),
    "load": lambda load: f"{load:g}",
    "speed": lambda speed: f"{speed:g}",
    "usd": lambda usd: f"{usd:.15g}",
}
"""Kind of value -> how it is typed, where that is not its plain text."""


def arguments(options: Options, tag_flag: str = "--tag") -> list[str]:
    """The options of a command that ask for the same, without pair and keys of ``peagle.yaml``."""
    words: list[str] = []
    for name, flag in read_flags(type(options)):
        value = getattr(options, name)
        if flag.in_file or value == type(options).model_fields[name].default:
            continue
        option = tag_flag if name == "tags" else max(option_names(name, flag), key=len)
        if flag.kind == "switch":
            words.append(option)
        elif isinstance(value, dict):
            words += [word for key in value for word in (option, f"{key}={value[key]}")]
        else:
            words += [option, _TEXTS.get(flag.kind, str)(value)]
    return words


def select_file_keys(options: Options) -> dict[str, Any]:
    """The fields that are set and no options: keys of ``peagle.yaml`` by name."""
    return {
        name: getattr(options, name)
        for name, flag in read_flags()
        if flag.in_file and getattr(options, name) != Options.model_fields[name].default
    }
