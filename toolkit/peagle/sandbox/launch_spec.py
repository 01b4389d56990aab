"""What to launch for an endpoint, and which of the plan's arguments are left out. No side effects.

``stand_in_for`` replaces a target that this machine cannot run by ``peagle/tiny``. Everything that
does not belong to the target stays as planned, so that the plan's settings are exercised: the
method, K (up to the K that tiny's head was trained for), the context (up to tiny's), the served
name.

A CPU has no GPU memory, CUDA graphs or ranks, and a stand-in replaces the target. What was left out
was not tested either: a value that vLLM rejects on a GPU passes here (``not_applied``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Protocol

from peagle.catalog.schema import Drafter, Target
from peagle.checks.facts import parse_ecr_image
from peagle.engine.cpu import valid_speculation
from peagle.render.requests import PAIR_TAG
from peagle_serve.contract import (
    HUB_MODEL,
    MODEL,
    PREFIX,
    SERVED_NAME,
    SPECULATION,
    WEIGHTS_PIN_VARIABLE,
)
from peagle_serve.environment import flag_of, variable_of

MAX_ENGINES = 4
"""The largest number of engines of one variant; DescribeEndpoint shows how many run."""

DEFAULT_STARTUP_SECONDS = 600
"""Seconds until /ping must answer when the request sets no limit. Our choice: API_ProductionVariant
gives the range 60-3600 and no default."""

_OF_THE_ENGINE = (PREFIX, "VLLM_", "CUDA_", "NCCL_")
_REPLACED_KNOWINGLY = (MODEL, HUB_MODEL, SERVED_NAME)
_OF_THE_DRAFTER = ("model", "revision", "code_revision")
"""What a stand-in replaces; the stand-in itself is reported elsewhere."""


class ContainerModel(Protocol):
    """A SageMaker model: its containers and its tags."""

    @property
    def all_containers(self) -> list[Mapping[str, Any]]: ...

    @property
    def tags(self) -> list[dict[str, str]]: ...


@dataclass(frozen=True)
class ModelData:
    """Weights in S3 and the folder below ``/opt/ml`` that they are downloaded to.

    ``archive``: the object is a tar.gz that is extracted there. Otherwise ``uri`` is a prefix, or,
    with ``single``, one object.
    """

    uri: str
    into: PurePosixPath
    archive: bool = False
    single: bool = False


@dataclass(frozen=True)
class LaunchSpec:
    """An engine to launch.

    ``limitations`` lists the parts of the request that the sandbox ignores. ``vllm`` is the version
    in the tag of ``image``, if there is one; ``pair`` is the value of the model's pair tag, which
    everything that the toolkit renders carries. ``count`` engines are started. ``plain``: the image
    is AWS's own, without the toolkit's entrypoint. ``component`` is the inference component whose
    copies these are, if they are copies.
    """

    region: str
    endpoint: str
    variant: str
    environment: Mapping[str, str]
    model_data: tuple[ModelData, ...]
    startup_seconds: int
    limitations: tuple[str, ...] = ()
    vllm: str | None = None
    image: str = ""
    pair: str = ""
    count: int = 1
    plain: bool = False
    component: str = ""

    def of_component(self, name: str) -> LaunchSpec:
        """The same engine as a copy of the inference component ``name``."""
        return replace(self, component=name)


NO_VERSIONS: Mapping[str, str] = {}


def launch_spec(
    region: str,
    endpoint: str,
    variant: Mapping[str, Any],
    model: ContainerModel,
    aws_accounts: Collection[str] = (),
    versions: Mapping[str, str] = NO_VERSIONS,
) -> LaunchSpec:
    """The specification for ``variant``, which serves ``model``; ``aws_accounts`` are those of
    AWS's images, ``versions`` the vLLM of images by their digest."""
    container = model.all_containers[0]
    image = container.get("Image", "")
    named = parse_ecr_image(image)
    tagged = re.search(r":(\d+\.\d+\.\d+)(-|$)", image)
    timeout = variant.get("ContainerStartupHealthCheckTimeoutInSeconds")
    return LaunchSpec(
        region=region,
        endpoint=endpoint,
        variant=variant["VariantName"],
        environment=dict(container.get("Environment") or {}),
        model_data=tuple(model_data(container)),
        startup_seconds=int(timeout or DEFAULT_STARTUP_SECONDS),
        limitations=tuple(_limitations(variant, model)),
        vllm=tagged[1] if tagged else versions.get(image.partition("@")[2]),
        image=image,
        pair=next((tag["Value"] for tag in model.tags if tag["Key"] == PAIR_TAG), ""),
        count=engines_for(int(variant.get("InitialInstanceCount") or 1)),
        plain=named is not None and named.account in aws_accounts,
    )


def model_data(container: Mapping[str, Any]) -> Iterator[ModelData]:
    """What SageMaker downloads below ``/opt/ml`` before it starts the container."""
    root = PurePosixPath("model")
    if container.get("ModelDataUrl"):
        yield ModelData(container["ModelDataUrl"], root, archive=True)
    if container.get("ModelDataSource"):
        yield _source(container["ModelDataSource"], root)
    for source in container.get("AdditionalModelDataSources") or []:
        yield _source(source, PurePosixPath("additional-model-data-sources", source["ChannelName"]))


def _source(source: Mapping[str, Any], into: PurePosixPath) -> ModelData:
    data = source["S3DataSource"]
    return ModelData(
        uri=data["S3Uri"],
        into=into,
        archive=data["CompressionType"] == "Gzip",
        single=data["S3DataType"] == "S3Object",
    )


def engines_for(instances: int) -> int:
    """How many engines run for that many instances of a variant."""
    return min(instances, MAX_ENGINES)


def _limitations(variant: Mapping[str, Any], model: ContainerModel) -> Iterator[str]:
    requested = int(variant.get("InitialInstanceCount") or 1)
    if requested > MAX_ENGINES:
        yield f"the sandbox runs {MAX_ENGINES} of {requested} instances"
    if len(model.all_containers) > 1:
        yield "only the first container is started"


TARGET_PATH = "/opt/ml/model/target"
DRAFTER_PATH = "/opt/ml/model/drafter"
P_EAGLE, EAGLE3 = "p-eagle", "eagle3"
"""The names of tiny's drafters in the catalogue."""

_BELONGS_TO_TARGET = frozenset(
    f"{PREFIX}{name}"
    for name in (
        *("REVISION", "CODE_REVISION", "TOKENIZER", "TOKENIZER_REVISION", "TOKENIZER_MODE"),
        *("HF_CONFIG_PATH", "HF_OVERRIDES", "CONFIG_FORMAT", "LOAD_FORMAT", "MODEL_IMPL"),
        *("DTYPE", "QUANTIZATION", "ROPE_SCALING", "ROPE_THETA", "GENERATION_CONFIG"),
        *("CHAT_TEMPLATE", "REASONING_PARSER", "TOOL_CALL_PARSER", "ENABLE_AUTO_TOOL_CHOICE"),
        *("LIMIT_MM_PER_PROMPT", "LANGUAGE_MODEL_ONLY", "MM_PROCESSOR_KWARGS"),
    )
)
_DRAFTER_KEYS = frozenset({"revision", "code_revision", "quantization", "max_model_len"})
_NUMBER, _LENGTH = "num_speculative_tokens", f"{PREFIX}MAX_MODEL_LEN"


@dataclass(frozen=True)
class StandIn:
    """The environment that serves tiny, its drafter (if any), and notes on every change."""

    environment: dict[str, str]
    drafter: Drafter | None
    notes: tuple[str, ...]


def stand_in_for(environment: Mapping[str, str], tiny: Target) -> StandIn:
    """``environment`` with ``tiny`` as its target and tiny's drafter of the same kind."""
    target = environment.get(MODEL) or environment.get(HUB_MODEL) or "the model"
    own = sorted(_BELONGS_TO_TARGET & environment.keys())
    notes = [f"{name}={environment[name]} is left out: it belongs to {target}" for name in own]
    changed = {
        **{name: value for name, value in environment.items() if name not in own},
        MODEL: TARGET_PATH,
        SERVED_NAME: environment.get(SERVED_NAME, target),
    }
    for name in (HUB_MODEL, WEIGHTS_PIN_VARIABLE):
        changed.pop(name, None)
    _limit_length(changed, tiny, notes)
    drafter = _replace_speculation(changed, tiny, notes)
    for setting in (*tiny.engine_arguments, *(drafter.engine_arguments if drafter else ())):
        name, value = variable_of(setting.name), setting.value
        changed[name] = str(value).lower() if isinstance(value, bool) else str(value)
        notes.append(f"{name}={changed[name]}: {setting.because}")
    return StandIn(changed, drafter, tuple(notes))


def _limit_length(changed: dict[str, str], tiny: Target, notes: list[str]) -> None:
    longest = tiny.architecture.max_positions
    length = changed.get(_LENGTH)
    if length is None or (length.isdecimal() and int(length[:20]) <= longest):
        return
    changed[_LENGTH] = str(longest)
    notes.append(f"{_LENGTH}={length} becomes {longest}, the context of tiny")


def _replace_speculation(changed: dict[str, str], tiny: Target, notes: list[str]) -> Drafter | None:
    config = valid_speculation(changed)
    if not config or config.get("method") == "ngram":
        return None
    drafter = _drafter(config, tiny, notes)
    new = {name: value for name, value in config.items() if name not in _DRAFTER_KEYS}
    new |= {"method": drafter.method, "model": DRAFTER_PATH}
    new.pop("parallel_drafting", None)
    if drafter.parallel_drafting:
        new["parallel_drafting"] = True
    _limit_number(new, drafter, notes)
    changed[SPECULATION] = json.dumps(new, ensure_ascii=False)
    return drafter


def _drafter(config: Mapping[str, Any], tiny: Target, notes: list[str]) -> Drafter:
    method, parallel = config.get("method"), config.get("parallel_drafting") is True
    name = EAGLE3 if method in ("eagle", "eagle3") and not parallel else P_EAGLE
    drafter = next(one for one in tiny.drafters if one.name == name)
    if method not in ("eagle", "eagle3"):
        notes.append(f"tiny has no drafter for method {method}; its {drafter.title} drafts instead")
    else:
        notes.append(f"the drafter is tiny's {drafter.title}")
    return drafter


def _limit_number(config: dict[str, Any], drafter: Drafter, notes: list[str]) -> None:
    k, trained = config.get(_NUMBER), drafter.k_trained
    if trained is not None and isinstance(k, int) and k > trained:
        config[_NUMBER] = trained
        notes.append(f"{_NUMBER}={k} becomes {trained}, the K of tiny's drafter")


def not_applied(planned: Mapping[str, str], run: Mapping[str, str]) -> tuple[str, ...]:
    """The arguments of the environment ``planned`` that ``run`` has not, or with another value.

    Each as on vLLM's command line, followed by the value that is used instead.
    """
    return tuple(_differences(planned, run))


def _differences(planned: Mapping[str, str], run: Mapping[str, str]) -> Iterator[str]:
    for name, value in sorted(planned.items()):
        if not name.startswith(_OF_THE_ENGINE) or name in _REPLACED_KNOWINGLY:
            continue
        if name == SPECULATION:
            yield from _of_speculation(planned, run)
        elif run.get(name) != value:
            flag = flag_of(name) if name.startswith(PREFIX) else name
            yield _text(flag, "" if value == "true" else value, run.get(name))


def _of_speculation(planned: Mapping[str, str], run: Mapping[str, str]) -> Iterator[str]:
    now = valid_speculation(run)
    for key, value in valid_speculation(planned).items():
        if key not in _OF_THE_DRAFTER and now.get(key) != value:
            instead = json.dumps(now[key]) if key in now else None
            yield _text(f"{flag_of(SPECULATION)}.{key}", json.dumps(value), instead)


def _text(flag: str, value: str, instead: str | None) -> str:
    return f"{flag} {value}".rstrip() + (f" ({instead} instead)" if instead else "")
