"""How a head is trained: its shape and explicit settings, what they become with a target on this
machine, and the arguments of each step of speculators 0.9.0, whose defaults are not P-EAGLE's.

Heads are trained with full attention in all layers: vLLM takes no mix of full and sliding layers,
and a window loses acceptance in short contexts. Every position of a text is an anchor as far as
memory allows. Training begins with a new head in 32 bits and not with the one of the dry run, which
has the same weights in 16.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peagle.catalog.find import find_pair
from peagle.catalog.schema import Catalog, Target
from peagle.catalog.tables import HERE
from peagle.checkpoints.models import Checkpoint, reserved_tokens
from peagle.data import data_folder, weights_folder
from peagle.engine.gpus import Gpus, visible_gpus
from peagle.engine.hidden_states import CPU_CONNECTOR, CPU_CONNECTOR_MODULE
from peagle.errors import OptionsConflict, OutOfRange, Refused, UserError
from peagle.findings import errors, refuse_errors
from peagle.planning.plan import Plan
from peagle.planning.speculation import without_floor
from peagle.train.data import TrainingData
from peagle.vllm.environment import settings_in
from peagle.weights.layout import checkpoint_at
from peagle.weights.own_target import plan_pair
from peagle_serve import json_reader
from peagle_serve.contract import ENFORCE_EAGER, PREFIX, SPECULATION
from peagle_serve.heads import PLACEHOLDERS, read_head


@dataclass(frozen=True)
class Recipe:
    """The head and its training as the user chooses them. ``depths`` are the tokens that the head
    drafts in a step while it is trained. ``sequence_length`` is of a training step, in tokens, into
    which texts are packed; ``answer_tokens`` limits an answer of the target, which replaces the
    data's without ``keep_answers``. ``max_steps`` ends the training early, for a probe.
    ``settings`` are further arguments of ``speculators train``, without dashes, which replace the
    toolkit's."""

    layers: int = 4
    depths: int = 8
    epochs: int = 5
    sequence_length: int = 8192
    answer_tokens: int = 1024
    keep_answers: bool = False
    mask_token_id: int | None = None
    max_steps: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


GPU_OPTIMIZER = "muon"
GPU_REQUESTS, CPU_REQUESTS = 256, 32
"""Concurrent requests that the trainer sends to an engine."""

CPU_RECIPE = Recipe(depths=5, sequence_length=256, answer_tokens=192)
"""For a small target: attention with an explicit mask takes the square of a step's tokens."""


@dataclass(frozen=True)
class Setup:
    """What follows from the target and the machine: ``target`` is the folder or the Hub's id that
    engine and trainer load, ``layers`` are the layers whose hidden states the head reads,
    ``last_layer`` the one before the output, and ``states_bytes`` the size of those of a token.
    ``max_anchors`` is what the memory has room for, in positions of a step, and ``context`` the
    engine's longest context, in tokens."""

    target: str
    layers: tuple[int, ...]
    last_layer: int
    states_bytes: int
    mask_token_id: int
    max_anchors: int
    context: int
    gpu: bool = False

    @property
    def requests(self) -> int:
        """Concurrent requests of the trainer."""
        return GPU_REQUESTS if self.gpu else CPU_REQUESTS


def published_head(target: Target) -> Mapping[str, Any]:
    """config.json of the target's P-EAGLE head, as far as the catalogue has it; else empty."""
    catalog = data_folder("model_catalog")
    for drafter in target.drafters:
        if drafter.method != "eagle3" or not drafter.parallel_drafting:
            continue
        bundled = catalog / target.id.partition("/")[0] / (drafter.weights or "")
        for folder in (catalog / "configs" / target.short_name / drafter.name, bundled):
            if (file := folder / "config.json").is_file():
                return dict(json_reader.read_file(file))
    return {}


def choose_layers(count: int, published: Mapping[str, Any]) -> tuple[int, ...]:
    """The layers, of ``count``, whose hidden states the head reads: those of the published head,
    else 2, the middle and the third from the end. Raises UserError for a target whose layers are
    too few for these to differ."""
    if published and (layers := read_head(published).auxiliary_layers):
        return layers
    if count < 7:
        message = f"the target has {count} layers; a head needs one with at least 7"
        raise UserError(message, "train a head for a larger target", "target-too-small")
    return 2, count // 2, count - 3


def choose_mask_token(
    target: Target, model: Checkpoint, published: Mapping[str, Any], chosen: int | None = None
) -> int:
    """The token of the masked slots: ``chosen``, else that of the published head, else a mask token
    of the tokenizer, else the first id that the tokenizer does not use. Raises UserError where
    there is none, and for one that ends or fills up text."""
    size, tokenizer = target.architecture.vocab_size, model.tokenizer
    keys = (key for key in PLACEHOLDERS if key in published)
    token: int | None = next((published[key] for key in keys), None) if chosen is None else chosen
    if token is None and tokenizer:
        named = tokenizer.special_tokens.items()
        token = next((int(n) for n, text in named if text.strip("<|>[]").lower() == "mask"), None)
        if token is None and (tokenizer.vocab_size or size) < size:
            token = tokenizer.vocab_size
    fix = "choose one that no text has, with --mask-token-id; the tokenizer's reserved ones do"
    if token is None:
        message = f"{target.id} has no spare token for the masked slots"
        raise UserError(message, fix, "no-mask-token")
    if not 0 <= token < size:
        raise OutOfRange(f"token {token} is not in the vocabulary of {size:,} tokens", fix)
    reserved: dict[str, set[Any]] = {**reserved_tokens(model)}
    reserved["bos"] = {model.config.get("bos_token_id")}
    for role, ids in reserved.items():
        if token in ids:
            message = f"token {token} is the {role.upper()} token of {target.id}"
            raise UserError(message, fix, "mask-token-used")
    return token


_KEPT_RATIO, _LEAST_KEPT = 0.8, 0.2
"""Of depth d the trainer keeps the first to the power of d of all positions, at least the second:
the settings of P-EAGLE's authors."""

CHECKPOINT_HEADS = 3
"""Times a head that its checkpoint takes, with the optimizer's moments (speculators 0.9.0)."""

_ANCHOR_BYTES = 14
"""Of GPU memory per drafted position and token of the vocabulary: logits of head and target, and
their gradients (measured for vocabularies of 1,024 and 201,088)."""


def anchors_within(recipe: Recipe, vocab_size: int, memory_bytes: int | None) -> int:
    """How many positions of a step can be anchors: those for the logits of whose slots half of the
    memory has room; without a limit all."""
    if memory_bytes is None:
        return recipe.sequence_length
    slots = memory_bytes / 2 / (_ANCHOR_BYTES * vocab_size) - recipe.sequence_length
    return max(64, min(recipe.sequence_length, int(slots / (slots_per_anchor(recipe.depths) - 1))))


def slots_per_anchor(depths: int) -> float:
    """The mean number of slots of an anchor, its first among them."""
    return sum(max(_KEPT_RATIO**depth, _LEAST_KEPT) for depth in range(depths))


@dataclass(frozen=True)
class Training:
    """What is trained, on what, and where to: the head to ``output``, its steps to ``work``; its
    acceptance is measured at ``k``. ``plan`` is of the target alone on this machine, ``plan_with``
    makes the one with the head in a folder, whatever its acceptance. ``states_share`` is the part
    of a GPU's memory for the engine that gives hidden states, where the trainer has no GPU of its
    own."""

    output: Path
    work: Path
    k: int
    recipe: Recipe
    setup: Setup
    data: TrainingData
    plan: Plan
    plan_with: Callable[[Path], Plan]
    catalog: Catalog
    states_share: float | None = None


def make_training(
    pair: str,
    output: Path,
    k: int,
    recipe: Recipe,
    data: TrainingData,
    catalog: Catalog,
    checkpoint: Checkpoint | None,
    gpus: Gpus | None,
    work: Path | None = None,
) -> Training:
    """The training of a head for the target of ``pair`` on those of this machine's ``gpus`` that
    are visible, else on its CPU. ``checkpoint`` is of a target that the catalogue does not have.
    ``work`` is by default a folder in the output. Raises UserError for a target without a spare
    token or with too few layers, and Refused where it does not fit."""
    target = find_pair(catalog, pair).target
    gpus = visible_gpus(gpus) if gpus else None

    def plan_for(**speculation: Any) -> Plan:
        """The plan with the fewest GPUs, so that the trainer has the others."""
        count = len(gpus.gpus) if gpus else 1
        for copies in (n for n in range(count, 0, -1) if count % n == 0):
            chosen = {"target_checkpoint": checkpoint, **speculation}
            chosen |= {"instance_type": HERE, "copies": copies} if gpus else {}
            plan = plan_pair(pair if checkpoint else target.id, chosen, catalog)
            if not errors(plan.findings):
                break
        refuse_errors(plan.findings)
        return plan

    plan = plan_for(speculation=False)
    weights = plan.target.weights
    if weights.kind not in ("directory", "hub"):
        message = f"the weights of {target.id} are not on this machine"
        raise Refused(message, "copy them to a folder, and name it", "weights-elsewhere")
    is_folder = weights.kind == "directory"
    location = str(weights_folder(weights.location).resolve()) if is_folder else weights.location
    published, sizes = published_head(target), target.architecture
    memory = gpus.gpus[0].memory_mib * 2**20 if gpus else None
    share = None
    if memory and gpus and len(gpus.gpus) <= plan.fit.tensor_parallel_size:
        share = min(0.8, max(0.3, 0.15 + 1.1 * target.weight_bytes / memory / len(gpus.gpus)))
    available = memory and round(memory * (1 - (share or 0)))
    layers = choose_layers(sizes.layers, published)
    setup = Setup(
        target=location,
        layers=layers,
        last_layer=sizes.layers,
        states_bytes=(len(layers) + 1) * sizes.hidden_size * (2 if gpus else 4),
        mask_token_id=choose_mask_token(
            target, checkpoint or checkpoint_at(location), published, recipe.mask_token_id
        ),
        max_anchors=anchors_within(recipe, sizes.vocab_size, available),
        context=int(str(settings_in(plan.environment)["max-model-len"])),
        gpu=gpus is not None,
    )

    def plan_with(head: Path) -> Plan:
        return without_floor(plan_for(drafter=str(head.resolve()), k=k))

    work = work or output / ".work"
    return Training(output, work, k, recipe, setup, data, plan, plan_with, catalog, share)


def train_arguments(recipe: Recipe, setup: Setup) -> list[str]:
    """The arguments of ``speculators train`` that a training and the dry run have in common."""
    settings = {
        "speculator-type": "peagle",
        "draft-arch": "llama",
        "num-layers": str(recipe.layers),
        "full-attention-indices": " ".join(map(str, range(recipe.layers))),
        "target-layer-ids": " ".join(map(str, setup.layers)),
        "mask-token-id": str(setup.mask_token_id),
        "no-norm-before-residual": "true",
        "num-depths": str(recipe.depths),
        "down-sample-ratio": str(_KEPT_RATIO),
        "down-sample-ratio-min": str(_LEAST_KEPT),
        "max-anchors": str(setup.max_anchors),
        "total-seq-len": str(recipe.sequence_length),
        "epochs": str(recipe.epochs),
        "optimizer": GPU_OPTIMIZER,
        "lr": "1e-3",
        "scheduler-type": "cosine",
        "scheduler-warmup-ratio": "0.02",
        "train-data-ratio": "0.98",
        # Logging a step synchronizes the GPU.
        "log-freq": "1" if not setup.gpu else "3" if recipe.max_steps else "10",
        **({"max-steps": str(recipe.max_steps)} if recipe.max_steps else {}),
        **({} if setup.gpu else _ON_CPU),
        **recipe.settings,
    }
    words = (word for name, value in settings.items() for word in (f"--{name}", *value.split()))
    switches_alone = (word for word in words if word != "true")
    return ["--verifier-name-or-path", setup.target, *switches_alone]


_ON_CPU = {
    "optimizer": "adamw", "lr": "3e-3",
    "draft-attn-impl": "sdpa", "loss-implementation": "eager", "hidden-states-dtype": "float32",
    "num-workers": "1",
}  # fmt: skip
"""Without Triton; and CPUs without AMX multiply 16 bits, which Muon does, 90 times more slowly."""


SAMPLING = (
    *("--temperature", '{"0.0": 0.75, "0.8": 0.25}', "--seed", "0", "--sampling-params"),
    '{"repetition_detection": {"min_pattern_size": 33, "max_pattern_size": 64, "min_count": 3}}',
)
"""How the target answers: three of four times greedily. An answer that repeats itself is ended, as
the head learns no more of it; a period of up to 64 tokens has a multiple in the range."""


def regenerate_arguments(
    recipe: Recipe, setup: Setup, questions: Path, answers: Path, url: str, has_turns: bool
) -> list[str]:
    """The argv that lets the target at ``url``, whose base is ``/v1``, answer; it continues where
    it was interrupted. Of conversations with several turns, which ``has_turns`` says, the limit of
    an answer also ends the conversation, so it is half of the context."""
    longest = max(recipe.answer_tokens, setup.context // 2) if has_turns else recipe.answer_tokens
    return [
        "regenerate-responses",
        *("--endpoint", f"{url}/chat/completions", "--model", setup.target),
        *("--dataset", str(questions), "--outfile", str(answers), "--resume"),
        *("--max-tokens", str(longest), "--concurrency", str(setup.requests)),
        *SAMPLING,
    ]


def prepare_arguments(
    recipe: Recipe, setup: Setup, answers: Path, output: Path, render: str | None
) -> list[str]:
    """The argv that writes the conversations in ``answers`` as token ids to ``output``. Where they
    are text, which ``--keep-answers`` leaves them, the server at ``render`` tokenizes them."""
    return [
        "prepare-data",
        *("--model", setup.target, "--data", str(answers), "--output", str(output)),
        # A row is a prompt of the engine, which must have room for a token of an answer.
        *("--seq-length", str(min(recipe.sequence_length, setup.context - 1)), "--overwrite"),
        *(("--render-endpoint", render) if render else ()),
    ]


def states_variables(setup: Setup, states: Path, memory_share: float | None) -> dict[str, str]:
    """The engine's variables with which it saves the hidden states of each request in the folder
    ``states``, and uses no more than that share of a GPU's memory."""
    layers = [*setup.layers, setup.last_layer]
    speculation = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": layers}},
    }
    connector: dict[str, Any] = {
        "kv_connector": "ExampleHiddenStatesConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(states)},
    }
    if not setup.gpu:
        connector |= {
            "kv_connector": CPU_CONNECTOR, "kv_connector_module_path": CPU_CONNECTOR_MODULE,
        }  # fmt: skip
    return {
        SPECULATION: json.dumps(speculation),
        f"{PREFIX}KV_TRANSFER_CONFIG": json.dumps(connector),
        f"{PREFIX}ENABLE_PREFIX_CACHING": "false",
        ENFORCE_EAGER: "true",  # it reads prompts only
        **({f"{PREFIX}GPU_MEMORY_UTILIZATION": f"{memory_share:.2f}"} if memory_share else {}),
    }


_REFUSED = (
    "speculator-type", "verifier-name-or-path", "data-path", "vllm-endpoint", "target-layer-ids",
    "save-path", "from-pretrained", "dry-run", "config", "full-attention-indices", "max-steps",
    "hidden-states-path", "trust-remote-code", "save-best", "checkpoint-freq",
    "num-layers", "epochs", "num-depths", "mask-token-id", "total-seq-len",
)  # fmt: skip
"""Arguments that would train a head that the engine cannot serve, or elsewhere, or not keep each
epoch; the last line has those that are options of ``peagle train``."""


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """``NAME=VALUE`` as settings of a training. Raises UserError for another form, and
    OptionsConflict for an argument that the toolkit itself has to choose."""
    settings = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            fix = "write NAME=VALUE, such as scheduler-type=linear"
            raise UserError(f"--set {text!r} is no argument with a value", fix)
        name = name.removeprefix("--").replace("_", "-")
        if name in _REFUSED:
            fix = "leave it out, or use the option in `peagle train run --help`"
            raise OptionsConflict(f"--set {name}: the toolkit sets this argument", fix)
        settings[name] = value
    return settings
