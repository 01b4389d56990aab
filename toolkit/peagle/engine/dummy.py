"""A pair without its weights: from its config.json files vLLM makes random ones, which take the
same time. For measurements only: no draft is accepted but by imposed acceptance.

The tokenizer is made up too: each word of a prompt is a token.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from peagle.catalog.find import find_drafter
from peagle.catalog.schema import Catalog, Target
from peagle.data import data_folder, weights_folder
from peagle.errors import NotFound
from peagle.planning.plan import Plan, Weights
from peagle.planning.speculation import with_speculation
from peagle.store import home, write_json
from peagle_serve import json_reader
from peagle_serve.contract import MODEL, PREFIX

PLUGIN = Path(__file__).resolve().parent / "dummy_weights"
"""The folder of the plugin, for ``PYTHONPATH``."""

_OWN_TENSORS = "PEAGLE_DUMMY_OWN_TENSORS"
_LEFT_OUT = (
    "revision", "tokenizer", "tool-call-parser", "reasoning-parser", "enable-auto-tool-choice",
    "hf-token", "load-format",
)  # fmt: skip
"""Arguments that are about files which a dummy does not have, or about the format of its text."""


def with_dummy_weights(plan: Plan, catalog: Catalog, words: Iterable[str]) -> Plan:
    """The plan with random weights of the same shapes, and a tokenizer that knows ``words``. Raises
    NotFound for a pair whose config.json files the catalogue does not have."""
    target, drafter = catalog.targets[plan.target.id], plan.drafter
    made = home() / "dummy" / plan.name
    config = _find_config(plan.target.weights, target, "target")
    folder = _make_folder(config, made / "target", words)
    weights = Weights(kind="directory", location=str(folder), engine_path=_TARGET)
    environment = {
        name: value
        for name, value in plan.environment.items()
        if name.removeprefix(PREFIX).lower().replace("_", "-") not in _LEFT_OUT
    }
    environment |= {MODEL: _TARGET, f"{PREFIX}LOAD_FORMAT": "dummy"}
    if "vision_config" in config.read_text(encoding="utf-8"):  # a dummy has no image processor
        environment[f"{PREFIX}LANGUAGE_MODEL_ONLY"] = "true"
    changed: dict[str, Any] = {
        "target": plan.target.model_copy(update={"weights": weights}),
        "environment": environment,
        "mounts": (),
        "proof": plan.proof.model_copy(update={"chat": False}),
    }
    if drafter is not None and drafter.weights is not None:
        config = _find_config(drafter.weights, target, drafter.name)
        head = _make_folder(config, made / "drafter", ())
        of_head = Weights(kind="directory", location=str(head), engine_path=_DRAFTER)
        changed["drafter"] = drafter.model_copy(update={"weights": of_head})
    plan = plan.model_copy(update=changed)
    return with_speculation(plan, plan.speculation) if plan.speculation else plan


_TARGET, _DRAFTER = "/opt/ml/model/target", "/opt/ml/model/drafter"


def dummy_variables(plan: Plan, catalog: Catalog) -> dict[str, str]:
    """Variables of the engine's process: the plugin, and which tensors the head has of its own."""
    target, tensors = catalog.targets[plan.target.id], ["lm_head"]
    if plan.drafter and find_drafter(target, plan.drafter.name).own_embeddings is not False:
        tensors.append("embed_tokens")
    return {"PYTHONPATH": str(PLUGIN), _OWN_TENSORS: ",".join(tensors)}


def _find_config(weights: Weights, target: Target, name: str) -> Path:
    """The config.json in the user's own folder, else in the catalogue."""
    folder = data_folder("model_catalog") / "configs" / target.short_name / name
    if weights.kind == "directory":
        folder = weights_folder(weights.location)
    if not (file := folder / "config.json").is_file():
        raise NotFound(
            f"the catalogue has no config.json of {name} for {target.short_name}",
            "measure its real weights, or name a folder with its config.json",
        )
    return file


def _make_folder(source: Path, folder: Path, words: Iterable[str]) -> Path:
    config = json_reader.read(source.read_text(encoding="utf-8"), str(source))
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    if words:
        size = int(config.get("vocab_size") or config["text_config"]["vocab_size"])
        named = dict.fromkeys((*_SPECIAL, *words))
        write_tokenizer(folder, (*named, *(f"w{number}" for number in range(size - len(named)))))
    return folder


def write_tokenizer(folder: Path, words: Iterable[str]) -> None:
    """Write a tokenizer to which each word is a token, and any other text the unknown one."""
    unknown, end = _SPECIAL
    numbers = {word: number for number, word in enumerate(dict.fromkeys((*_SPECIAL, *words)))}
    model = {"type": "WordLevel", "vocab": numbers, "unk_token": unknown}
    split = {"type": "WhitespaceSplit"}
    tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": split, "model": model}
    write_json(folder / "tokenizer.json", tokenizer)
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": unknown, "eos_token": end}
    write_json(folder / "tokenizer_config.json", kind)


_SPECIAL = ("<unk>", "<eos>")
"""The tokens for an unknown word and for the end."""
