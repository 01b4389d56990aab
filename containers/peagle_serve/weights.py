"""Which weights vLLM loads, and whether they exist or can be streamed from S3.

vLLM reports a missing model after its imports, and a missing streamer after loading the target.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from peagle_serve.contract import (
    HUB_MODEL,
    LOAD_FORMAT,
    ML_ROOT,
    MODEL,
    MODEL_FOLDER,
    ROOT_VARIABLE,
    SPECULATION,
    VOCABULARY_FILE,
    VOCABULARY_VARIABLE,
    WARM_FOLDER,
    InvalidEnvironment,
    is_s3_uri,
)
from peagle_serve.environment import members, read_speculative_config
from peagle_serve.folder import CONFIGURATIONS, check_folder, has_any, is_folder_path, names_in

_PATH_VARIABLES = (MODEL, "SM_VLLM_TOKENIZER")


def with_model(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` with ``SM_VLLM_MODEL`` set and every ``/opt/ml`` path resolved.

    The model is ``SM_VLLM_MODEL``, else a populated ``/opt/ml/model`` (or its ``target`` folder, if
    it holds target and drafter), else ``HF_MODEL_ID``. Raises InvalidEnvironment when there is
    none, or when a folder lacks files that vLLM needs.
    """
    root = ml_root(environment)
    chosen = dict(environment)
    chosen[MODEL] = environment.get(MODEL) or _found_model(environment, root)
    for name in _PATH_VARIABLES:
        if name in chosen:
            chosen[name] = real_path(chosen[name], root)
    if SPECULATION in chosen:
        chosen[SPECULATION] = _real_drafter(chosen[SPECULATION], root)
    needs_weights = loads_files(environment)
    for where, path in models_in(chosen).items():
        if is_folder_path(path):
            check_folder(where, path, root, needs_weights, ROOT_VARIABLE in environment)
        elif os.path.isfile(path):
            raise InvalidEnvironment(
                f"{where} is {path}, which is a file",
                "name the folder of a model with safetensors files",
            )
    return chosen | _format_of_hub(chosen)


def _format_of_hub(chosen: Mapping[str, str]) -> dict[str, str]:
    """The load format for a model of the Hub, whose files are not checked: ``auto`` falls back
    to pickles in a repository without safetensors."""
    named = models_in(chosen).values()
    on_hub = [path for path in named if not is_folder_path(path)]
    streamed = any(map(is_s3_uri, on_hub))
    is_auto = chosen.get(LOAD_FORMAT, "auto").strip().lower() == "auto"
    return {LOAD_FORMAT: "safetensors"} if on_hub and is_auto and not streamed else {}


def vocabulary(environment: Mapping[str, str], chosen: Mapping[str, str]) -> dict[str, str]:
    """The variable for a vocabulary next to the model's weights; empty without one."""
    folder = chosen[MODEL]
    if VOCABULARY_VARIABLE in environment or not is_folder_path(folder):
        return {}
    return {VOCABULARY_VARIABLE: folder} if VOCABULARY_FILE in names_in(Path(folder)) else {}


def models_in(chosen: Mapping[str, str]) -> dict[str, str]:
    """Target and drafter (if there is one), by what names them in the environment."""
    found = {MODEL: chosen[MODEL], f'"model" of {SPECULATION}': drafter_model(chosen)}
    return {where: path for where, path in found.items() if path}


def local_folders(chosen: Mapping[str, str]) -> dict[str, str]:
    """The folders that vLLM loads: target, drafter and tokenizer, by what names them."""
    named = models_in(chosen) | {name: chosen.get(name, "") for name in _PATH_VARIABLES}
    return {where: path for where, path in named.items() if is_folder_path(path)}


def loads_files(environment: Mapping[str, str]) -> bool:
    """Whether vLLM loads ordinary weights files; it checks other formats itself."""
    return environment.get(LOAD_FORMAT, "auto").strip() in ("auto", "runai_streamer")


def drafter_model(environment: Mapping[str, str]) -> str | None:
    """The ``model`` of the speculative configuration."""
    model = read_speculative_config(environment).get("model")
    return model if isinstance(model, str) else None


def unused(environment: Mapping[str, str], chosen: Mapping[str, str]) -> str:
    """A warning if ``HF_MODEL_ID`` names a model and another one is served; else ""."""
    named = environment.get(HUB_MODEL)
    if not named or named == chosen[MODEL]:
        return ""
    why = f"{MODEL} is set" if environment.get(MODEL) else f"{MODEL_FOLDER} has weights"
    return f"{HUB_MODEL} ({named}) is not used: {why}, and {chosen[MODEL]} is served"


def ml_root(environment: Mapping[str, str]) -> str:
    """The folder that stands for ``/opt/ml``."""
    return environment.get(ROOT_VARIABLE, ML_ROOT).rstrip("/")


def _found_model(environment: Mapping[str, str], root: str) -> str:
    folder = Path(real_path(MODEL_FOLDER, root))
    if set(names_in(folder)) - {WARM_FOLDER}:
        beside = folder / "target"
        side_by_side = not has_any(folder, CONFIGURATIONS) and has_any(beside, CONFIGURATIONS)
        return str(beside if side_by_side else folder)
    if environment.get(HUB_MODEL):
        return environment[HUB_MODEL]
    raise InvalidEnvironment(
        "no model is set",
        f"set {MODEL} or {HUB_MODEL}, or mount weights at {MODEL_FOLDER}",
    )


def real_path(path: str, root: str) -> str:
    """``path`` with ``/opt/ml`` replaced by ``root``."""
    if path == ML_ROOT or path.startswith(f"{ML_ROOT}/"):
        return root + path[len(ML_ROOT) :]
    return path


def _real_drafter(config: str, root: str) -> str:
    """The speculative configuration with its ``model`` resolved, all other bytes unchanged."""
    part = members(config).get("model")
    named = part.value if part else None
    real = real_path(named, root) if isinstance(named, str) else named
    if part is None or real == named:
        return config
    return config[: part.start] + json.dumps(real, ensure_ascii=False) + config[part.end :]


_STREAMERS = ("runai_streamer", "runai_streamer_sharded", "modelexpress")
"""Values of vLLM's ``--load-format`` for ``s3://``; the first is its default for such a target."""
_PACKAGES = ("runai_model_streamer", "runai_model_streamer_s3")


def check_streamer(environment: Mapping[str, str]) -> None:
    """Raise InvalidEnvironment for an ``s3://`` URI that this vLLM cannot load."""
    named = models_in(environment)
    streamed = {where: path for where, path in named.items() if is_s3_uri(path)}
    if not streamed:
        return
    where, path = next(iter(streamed.items()))
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise InvalidEnvironment(
            f"{where} is {path}, but this image has no {missing[0]} to stream it",
            "use an image with runai-model-streamer[s3], or mount the weights",
        )
    given = environment.get(LOAD_FORMAT, "auto").strip()
    if given not in _STREAMERS and (given != "auto" or MODEL not in streamed):
        raise InvalidEnvironment(
            f"{where} is {path}, which {LOAD_FORMAT} {given} cannot load",
            f"set {LOAD_FORMAT}={_STREAMERS[0]}",
        )
