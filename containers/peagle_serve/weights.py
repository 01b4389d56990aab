"""Which weights vLLM loads; whether they exist, and are those of the plan.

`peagle weights sync` writes a manifest beside the folders of target and drafter, and a deploy pins
its SHA-256 in ``PEAGLE_WEIGHTS_SHA256``. Names and sizes are compared at every start.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from peagle_serve import json_reader
from peagle_serve.checkpoint import (
    CONFIGURATIONS,
    check_folder,
    first_names,
    has_any,
    is_folder_path,
    names_in,
)
from peagle_serve.contract import (
    HUB_MODEL,
    LOAD_FORMAT,
    ML_ROOT,
    MODEL,
    MODEL_FOLDER,
    PREFIX,
    ROOT_VARIABLE,
    SHA256,
    SPECULATION,
    VOCABULARY_FILE,
    VOCABULARY_VARIABLE,
    WARM_FOLDER,
    WARM_FOLDER_VARIABLE,
    WEIGHTS_MANIFEST,
    WEIGHTS_PIN_VARIABLE,
    InvalidEnvironment,
    is_s3_uri,
)
from peagle_serve.environment import read_speculative_config
from peagle_serve.json_reader import read_regular

_TOKENIZER = f"{PREFIX}TOKENIZER"
_DRAFTER = f'"model" of {SPECULATION}'


def with_model(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` with ``SM_VLLM_MODEL`` set and every ``/opt/ml`` path resolved. The model is
    ``SM_VLLM_MODEL``, else a populated ``/opt/ml/model`` (or its ``target`` folder, if it holds
    target and drafter), else ``HF_MODEL_ID``. A model of the Hub, whose files are not checked, is
    loaded from safetensors alone: ``auto`` falls back to pickles. Raises InvalidEnvironment when
    there is no model, or when a folder lacks files that vLLM needs."""
    root, chosen = ml_root(environment), dict(environment)
    mount = Path(real_path(MODEL_FOLDER, root))
    if not chosen.get(MODEL) and set(names_in(mount)) - {WARM_FOLDER}:
        target = mount / "target"
        side_by_side = not has_any(mount, CONFIGURATIONS) and has_any(target, CONFIGURATIONS)
        chosen[MODEL] = str(target if side_by_side else mount)
    elif not chosen.get(MODEL) and not environment.get(HUB_MODEL):
        raise InvalidEnvironment(
            "no model is set", f"set {MODEL} or {HUB_MODEL}, or mount weights at {MODEL_FOLDER}"
        )
    chosen[MODEL] = chosen.get(MODEL) or environment[HUB_MODEL]
    for name in {MODEL, _TOKENIZER} & chosen.keys():
        chosen[name] = real_path(chosen[name], root)
    drafter = drafter_model(chosen)
    if drafter and (real := real_path(drafter, root)) != drafter:
        config = {**read_speculative_config(chosen), "model": real}
        chosen[SPECULATION] = json.dumps(config, ensure_ascii=False)
    models = models_in(chosen)
    for where, path in models.items():
        if is_folder_path(path):
            check_folder(where, path, needs_weights=loads_files(environment))
        elif os.path.isfile(path):
            raise InvalidEnvironment(
                f"{where} is {path}, which is a file",
                "name the folder of a model with safetensors files",
            )
    on_hub = [path for path in models.values() if not is_folder_path(path)]
    is_auto = chosen.get(LOAD_FORMAT, "auto").strip().lower() == "auto"
    if on_hub and is_auto and not any(map(is_s3_uri, on_hub)):
        chosen[LOAD_FORMAT] = "safetensors"
    return chosen


def ml_root(environment: Mapping[str, str]) -> str:
    """The folder that stands for ``/opt/ml``."""
    return environment.get(ROOT_VARIABLE, ML_ROOT).rstrip("/")


def real_path(path: str, root: str) -> str:
    """``path`` with ``/opt/ml`` replaced by ``root``."""
    is_inside = path == ML_ROOT or path.startswith(f"{ML_ROOT}/")
    return root + path[len(ML_ROOT) :] if is_inside else path


def artifact_folder(environment: Mapping[str, str]) -> Path:
    """The folder of warm starts: next to the weights, unless the user sets another."""
    folder = environment.get(WARM_FOLDER_VARIABLE) or f"{MODEL_FOLDER}/{WARM_FOLDER}"
    return Path(real_path(folder, ml_root(environment)))


def models_in(chosen: Mapping[str, str]) -> dict[str, str]:
    """Target and drafter (if there is one), by what names them in the environment."""
    drafter = drafter_model(chosen)
    return {MODEL: chosen[MODEL], **({_DRAFTER: drafter} if drafter else {})}


def drafter_model(environment: Mapping[str, str]) -> str | None:
    """The ``model`` of the speculative configuration."""
    model = read_speculative_config(environment).get("model")
    return model if isinstance(model, str) else None


def loads_files(environment: Mapping[str, str]) -> bool:
    """Whether vLLM loads ordinary weights files; it checks other formats itself."""
    return environment.get(LOAD_FORMAT, "auto").strip() in ("auto", "runai_streamer")


def vocabulary(environment: Mapping[str, str], chosen: Mapping[str, str]) -> dict[str, str]:
    """The variable for a vocabulary next to the model's weights; empty without one."""
    folder = chosen[MODEL]
    if VOCABULARY_VARIABLE in environment or not is_folder_path(folder):
        return {}
    return {VOCABULARY_VARIABLE: folder} if VOCABULARY_FILE in names_in(Path(folder)) else {}


_FORMAT = 1
_FIX = "copy the weights again with `peagle weights sync`; if the change is meant, deploy again"


def check_mounted_weights(environment: Mapping[str, str]) -> None:
    """Raise InvalidEnvironment for weights that differ from the manifest, for a served folder of
    the mount that it does not list, and for another manifest than the pinned one. ``environment``
    names the model and resolved paths. Without a pin nothing is compared."""
    pin = environment.get(WEIGHTS_PIN_VARIABLE, "").strip()
    if not pin:
        return
    if not SHA256.fullmatch(pin):
        raise InvalidEnvironment(f"{WEIGHTS_PIN_VARIABLE} is {pin[:80]!r}", "deploy again")
    mount = Path(real_path(MODEL_FOLDER, ml_root(environment)))
    manifest = mount / WEIGHTS_MANIFEST
    folders = _read_manifest(manifest, pin)
    named = {**models_in(environment), _TOKENIZER: environment.get(_TOKENIZER, "")}
    root = mount.resolve()
    for where, path in named.items():
        folder = Path(path).resolve()
        if not (is_folder_path(path) and folder.is_relative_to(root)):
            continue
        if not folder.relative_to(root).parts or folder.relative_to(root).parts[0] not in folders:
            raise InvalidEnvironment(
                f"{where} is {path}, which {manifest} does not list",
                "copy these weights with `peagle weights sync` too, and deploy again",
            )
    for role, files in folders.items():
        _compare_sizes(mount / role, files)


def _read_manifest(file: Path, pin: str) -> dict[str, dict[str, int]]:
    """The sizes in bytes of the manifest's files, by folder and name. Raises InvalidEnvironment."""
    try:
        content = read_regular(file)
    except OSError as error:
        message = f"{WEIGHTS_PIN_VARIABLE} needs {file}: {error.strerror}"
        raise InvalidEnvironment(message, _FIX) from None
    digest = hashlib.sha256(content).hexdigest()
    if digest != pin:
        raise InvalidEnvironment(
            f"{file} has the SHA-256 {digest}, and {WEIGHTS_PIN_VARIABLE} is {pin}: the weights "
            "were changed after the deploy",
            _FIX,
        )
    try:
        document = json_reader.read(content, str(file))
        if document["format"] != _FORMAT:
            raise ValueError("another format")
        folders: dict[str, dict[str, int]] = {}
        for role, folder in document["folders"].items():
            if role not in ("target", "drafter") or folder["complete"] is not True:
                raise ValueError(f"the copy of the {role} is not complete")
            folders[role] = {name: int(entry["size"]) for name, entry in folder["files"].items()}
        return folders
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise InvalidEnvironment(f"{file} cannot be used: {error}", _FIX) from None


def _compare_sizes(folder: Path, files: Mapping[str, int]) -> None:
    """Raise InvalidEnvironment unless the folder holds these files, of these sizes, and no more."""
    try:
        paths = [path for path in folder.rglob("*") if path.is_file() or path.is_symlink()]
        sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths}
    except OSError as error:
        raise InvalidEnvironment(f"{folder} cannot be read: {error.strerror}", _FIX) from None
    names = sorted({*files, *sizes})
    if differing := [name for name in names if sizes.get(name) != files.get(name)]:
        raise InvalidEnvironment(
            f"{folder} differs from its manifest: {first_names(differing)}", _FIX
        )
