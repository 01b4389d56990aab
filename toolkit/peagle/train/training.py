"""What is to be trained, from what the user asked: the plan of the target alone on this machine,
the layers and the mask of the head, and how much memory a step may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle.catalog.find import find_pair
from peagle.catalog.schema import Catalog
from peagle.catalog.tables import HERE
from peagle.checkpoints.models import Checkpoint
from peagle.data import weights_folder
from peagle.engine.gpus import Gpus, visible_gpus
from peagle.errors import Refused
from peagle.findings import errors, refuse_errors
from peagle.planning.plan import Plan
from peagle.planning.speculation import without_floor
from peagle.train.data import TrainingData
from peagle.train.recipe import (
    Recipe,
    Setup,
    anchors_within,
    choose_layers,
    choose_mask_token,
    published_head,
)
from peagle.vllm.environment import settings_in
from peagle.weights.layout import checkpoint_at
from peagle.weights.own_target import plan_pair


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
    pair = pair if checkpoint else target.id

    def plan_for(**speculation: Any) -> Plan:
        """The plan with the fewest GPUs, so that the trainer has the others."""
        count = len(gpus.gpus) if gpus else 1
        for copies in (n for n in range(count, 0, -1) if count % n == 0):
            chosen = {"target_checkpoint": checkpoint, **speculation}
            chosen |= {"instance_type": HERE, "copies": copies} if gpus else {}
            plan = plan_pair(pair, chosen, catalog)
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
    setup = Setup(
        target=location,
        layers=choose_layers(sizes.layers, published),
        last_layer=sizes.layers,
        hidden_size=sizes.hidden_size,
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
