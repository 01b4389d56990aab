"""What an endpoint asks to be run. Pure.

``peagle/tiny`` in the place of a target that this machine cannot run. Pure.

Everything that is not the target's own stays as planned, so that the plan's settings are what is
tried: the method, K (up to what tiny's head was trained for), the context (up to tiny's), the
served name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Protocol

from peagle.catalog.schema import Drafter, EngineSetting, Target
from peagle.render.requests import PAIR_TAG

DEFAULT_STARTUP_SECONDS = 600
"""How long a container may take to answer /ping when the request does not say. A choice of ours;
API_ProductionVariant gives the range 60-3600 and no default."""


class ModelLike(Protocol):
    """A model with its containers."""

    @property
    def all_containers(self) -> list[Mapping[str, Any]]: ...

    @property
    def tags(self) -> list[dict[str, str]]: ...


@dataclass(frozen=True)
class ModelData:
    """Weights on S3 and where the container finds them, below ``/opt/ml``.

    ``archive``: the object is a tar.gz that is unpacked there. Otherwise ``uri`` is a prefix, or,
    with ``single``, one object.
    """

    uri: str
    into: PurePosixPath
    archive: bool = False
    single: bool = False


@dataclass(frozen=True)
class Order:
    """An engine to start. ``remarks`` say what of the request the sandbox does not do.

    ``vllm`` is the version in the tag of ``image``, if it names one; ``pair`` is what the model's
    tags say that it serves, as everything that the toolkit renders says it.
    """

    region: str
    endpoint: str
    variant: str
    environment: Mapping[str, str]
    model_data: tuple[ModelData, ...]
    startup_seconds: int
    remarks: tuple[str, ...] = ()
    vllm: str | None = None
    image: str = ""
    pair: str = ""


def order_of(
    region: str, endpoint: str, variants: Sequence[Mapping[str, Any]], model: ModelLike
) -> Order:
    """The order for the first of ``variants``, which serves ``model``."""
    variant, container = variants[0], model.all_containers[0]
    return Order(
        region=region,
        endpoint=endpoint,
        variant=variant["VariantName"],
        environment=dict(container.get("Environment") or {}),
        model_data=tuple(model_data_of(container)),
        startup_seconds=int(
            variant.get("ContainerStartupHealthCheckTimeoutInSeconds") or DEFAULT_STARTUP_SECONDS
        ),
        remarks=tuple(_remarks(variants, model)),
        vllm=_version_of(container.get("Image", "")),
        image=container.get("Image", ""),
        pair=next((tag["Value"] for tag in model.tags if tag["Key"] == PAIR_TAG), ""),
    )


def model_data_of(container: Mapping[str, Any]) -> list[ModelData]:
    """What SageMaker would put below ``/opt/ml`` before it starts the container."""
    root = PurePosixPath("model")
    found: list[ModelData] = []
    if container.get("ModelDataUrl"):
        found.append(ModelData(container["ModelDataUrl"], root, archive=True))
    if container.get("ModelDataSource"):
        found.append(_source(container["ModelDataSource"], root))
    for source in container.get("AdditionalModelDataSources") or []:
        channel = PurePosixPath("additional-model-data-sources", source["ChannelName"])
        found.append(_source(source, channel))
    return found


def _version_of(image: str) -> str | None:
    found = re.search(r":(\d+\.\d+\.\d+)(-|$)", image)
    return found[1] if found else None


def _source(source: Mapping[str, Any], into: PurePosixPath) -> ModelData:
    data = source["S3DataSource"]
    return ModelData(
        uri=data["S3Uri"],
        into=into,
        archive=data["CompressionType"] == "Gzip",
        single=data["S3DataType"] == "S3Object",
    )


def _remarks(variants: Sequence[Mapping[str, Any]], model: ModelLike) -> list[str]:
    remarks = [
        f"variant {other['VariantName']} is not started: the sandbox runs the first one only"
        for other in variants[1:]
    ]
    if int(variants[0].get("InitialInstanceCount") or 1) > 1:
        remarks.append(f"one engine stands for {variants[0]['InitialInstanceCount']} instances")
    if len(model.all_containers) > 1:
        remarks.append("only the first container is started")
    return remarks


TARGET_PATH = "/opt/ml/model/target"
DRAFTER_PATH = "/opt/ml/model/drafter"
P_EAGLE, EAGLE3 = "p-eagle", "eagle3"
"""The names of tiny's heads in the catalogue."""

_BELONGS_TO_TARGET = frozenset(
    f"SM_VLLM_{name}"
    for name in (
        *("REVISION", "CODE_REVISION", "TOKENIZER", "TOKENIZER_REVISION", "TOKENIZER_MODE"),
        *("HF_CONFIG_PATH", "HF_OVERRIDES", "CONFIG_FORMAT", "LOAD_FORMAT", "MODEL_IMPL"),
        *("DTYPE", "QUANTIZATION", "ROPE_SCALING", "ROPE_THETA", "GENERATION_CONFIG"),
        *("CHAT_TEMPLATE", "REASONING_PARSER", "TOOL_CALL_PARSER", "ENABLE_AUTO_TOOL_CHOICE"),
        *("LIMIT_MM_PER_PROMPT", "LANGUAGE_MODEL_ONLY", "MM_PROCESSOR_KWARGS"),
    )
)
_DRAFTER_KEYS = frozenset({"revision", "code_revision", "quantization", "max_model_len"})
_NUMBER, _LENGTH = "num_speculative_tokens", "SM_VLLM_MAX_MODEL_LEN"


@dataclass(frozen=True)
class StandIn:
    """The environment that serves tiny, the head it takes (if any), and what was changed."""

    environment: dict[str, str]
    drafter: Drafter | None
    notes: tuple[str, ...]


def stand_in_for(environment: Mapping[str, str], tiny: Target) -> StandIn:
    """``environment`` with ``tiny`` for its target, and tiny's head of the same kind."""
    asked = environment.get("SM_VLLM_MODEL") or environment.get("HF_MODEL_ID") or "the model"
    own = sorted(_BELONGS_TO_TARGET & environment.keys())
    notes = [f"{name}={environment[name]} is left out: it belongs to {asked}" for name in own]
    changed = {
        **{name: value for name, value in environment.items() if name not in own},
        "SM_VLLM_MODEL": TARGET_PATH,
        "SM_VLLM_SERVED_MODEL_NAME": environment.get("SM_VLLM_SERVED_MODEL_NAME", asked),
    }
    changed.pop("HF_MODEL_ID", None)
    _limit_length(changed, tiny, notes)
    drafter = _replace_speculation(changed, tiny, notes)
    for setting in (*tiny.engine_arguments, *(drafter.engine_arguments if drafter else ())):
        _apply(changed, setting, notes)
    return StandIn(changed, drafter, tuple(notes))


def _apply(changed: dict[str, str], setting: EngineSetting, notes: list[str]) -> None:
    """An engine argument that tiny itself needs."""
    name = "SM_VLLM_" + setting.name.upper().replace("-", "_")
    value = setting.value
    changed[name] = str(value).lower() if isinstance(value, bool) else str(value)
    notes.append(f"{name}={changed[name]}: {setting.because}")


def _limit_length(changed: dict[str, str], tiny: Target, notes: list[str]) -> None:
    longest = tiny.architecture.max_positions
    asked = changed.get(_LENGTH)
    if asked is None or (asked.isdigit() and int(asked) <= longest):
        return
    changed[_LENGTH] = str(longest)
    notes.append(f"{_LENGTH}={asked} becomes {longest}: tiny reads no more")


def _replace_speculation(changed: dict[str, str], tiny: Target, notes: list[str]) -> Drafter | None:
    config = _speculation(changed)
    if config is None or config.get("method") == "ngram":
        return None
    drafter = _head(config, tiny, notes)
    new = {name: value for name, value in config.items() if name not in _DRAFTER_KEYS}
    new |= {"method": drafter.method, "model": DRAFTER_PATH}
    new.pop("parallel_drafting", None)
    if drafter.parallel_drafting:
        new["parallel_drafting"] = True
    _limit_number(new, drafter, notes)
    changed["SM_VLLM_SPECULATIVE_CONFIG"] = json.dumps(new, ensure_ascii=False)
    return drafter


def _speculation(changed: Mapping[str, str]) -> dict[str, Any] | None:
    """``None`` without speculation, and for what is not JSON: the engine itself refuses that."""
    try:
        config = json.loads(changed.get("SM_VLLM_SPECULATIVE_CONFIG", "null"))
    except ValueError:
        return None
    return config if isinstance(config, dict) else None


def _head(config: Mapping[str, Any], tiny: Target, notes: list[str]) -> Drafter:
    method, parallel = config.get("method"), config.get("parallel_drafting") is True
    name = EAGLE3 if method in ("eagle", "eagle3") and not parallel else P_EAGLE
    drafter = next(one for one in tiny.drafters if one.name == name)
    if method not in ("eagle", "eagle3"):
        notes.append(f"tiny has no head for method {method}: its {drafter.title} drafts instead")
    else:
        notes.append(f"the drafter is tiny's {drafter.title}")
    return drafter


def _limit_number(config: dict[str, Any], drafter: Drafter, notes: list[str]) -> None:
    asked, trained = config.get(_NUMBER), drafter.k_trained
    if trained is not None and isinstance(asked, int) and asked > trained:
        config[_NUMBER] = trained
        notes.append(f"{_NUMBER}={asked} becomes {trained}: tiny's head was trained for no more")
