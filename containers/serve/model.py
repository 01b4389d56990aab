"""Which weights vLLM is to load, and whether they are there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from serve.errors import WrongEnvironment
from serve.json_text import members
from serve.names import SPECULATION

ML_ROOT = "/opt/ml"
MODEL_FOLDER = f"{ML_ROOT}/model"
ROOT_VARIABLE = "PEAGLE_ML_ROOT"
"""Where ``/opt/ml`` really is, outside a container."""

_PATH_VARIABLES = ("SM_VLLM_MODEL", "SM_VLLM_TOKENIZER")
_CONFIGURATIONS = ("config.json", "params.json")
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".tensors")
_SHOWN = 5


def with_model(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` with ``SM_VLLM_MODEL`` set, and every ``/opt/ml`` path made a real one.

    The model is ``SM_VLLM_MODEL``, else a populated ``/opt/ml/model`` (or its ``target`` folder,
    where target and drafter lie side by side), else ``HF_MODEL_ID``. Raises WrongEnvironment when
    there is none, or when a folder that is named lacks what vLLM needs.
    """
    root = environment.get(ROOT_VARIABLE, ML_ROOT).rstrip("/")
    chosen = dict(environment)
    chosen["SM_VLLM_MODEL"] = environment.get("SM_VLLM_MODEL") or _found_model(environment, root)
    for name in _PATH_VARIABLES:
        if name in chosen:
            chosen[name] = _real(chosen[name], root)
    if SPECULATION in chosen:
        chosen[SPECULATION] = _real_drafter(chosen[SPECULATION], root)
    _check_weights("SM_VLLM_MODEL", chosen["SM_VLLM_MODEL"], chosen)
    drafter = _drafter(chosen)
    if drafter:
        _check_weights(f'"model" of {SPECULATION}', drafter, chosen)
    return chosen


def _found_model(environment: Mapping[str, str], root: str) -> str:
    folder = Path(_real(MODEL_FOLDER, root))
    if _names(folder):
        beside = folder / "target"
        side_by_side = not _has(folder, _CONFIGURATIONS) and _has(beside, _CONFIGURATIONS)
        return str(beside if side_by_side else folder)
    if environment.get("HF_MODEL_ID"):
        return environment["HF_MODEL_ID"]
    raise WrongEnvironment(
        "no model is named",
        f"set SM_VLLM_MODEL or HF_MODEL_ID, or mount weights at {MODEL_FOLDER}",
    )


def _real(path: str, root: str) -> str:
    if path == ML_ROOT or path.startswith(f"{ML_ROOT}/"):
        return root + path[len(ML_ROOT) :]
    return path


def _real_drafter(config: str, root: str) -> str:
    """The speculative configuration with its ``model`` made real, all other bytes as they were."""
    part = members(config).get("model")
    if part is None or not isinstance(part.value, str):
        return config
    real = _real(part.value, root)
    if real == part.value:
        return config
    return config[: part.start] + json.dumps(real, ensure_ascii=False) + config[part.end :]


def _drafter(environment: Mapping[str, str]) -> str | None:
    if SPECULATION not in environment:
        return None
    part = members(environment[SPECULATION]).get("model")
    return part.value if part and isinstance(part.value, str) else None


def _check_weights(where: str, path: str, environment: Mapping[str, str]) -> None:
    """Raise WrongEnvironment if ``path`` is a folder of this machine without a model in it."""
    folder = Path(path)
    if not path.startswith(("/", "./", "../")) or folder.is_file():
        return
    if not folder.is_dir():
        raise WrongEnvironment(
            f"{where} is {path}, and there is no such folder", _elsewhere(folder)
        )
    held = _names(folder)
    if not held:
        raise WrongEnvironment(f"{where} is {path}, and that folder is empty", "upload the weights")
    if not _has(folder, _CONFIGURATIONS):
        raise WrongEnvironment(
            f"{where} is {path}, which has no config.json (it holds {_some(held)})",
            _elsewhere(folder / "*"),
        )
    if "SM_VLLM_LOAD_FORMAT" not in environment and not any(
        name.endswith(_WEIGHTS) for name in held
    ):
        raise WrongEnvironment(
            f"{where} is {path}, which has no weights (it holds {_some(held)})",
            "upload the *.safetensors files too",
        )


def _elsewhere(missing: Path) -> str:
    """Names the folders nearby that do hold a model."""
    near = {path for base in (missing.parent, missing.parent.parent) for path in base.glob("*")}
    models = sorted(str(path) for path in near if _has(path, _CONFIGURATIONS))
    return f"there is a model in {_some(models)}" if models else "mount or upload the weights there"


def _has(folder: Path, names: Iterable[str]) -> bool:
    return any((folder / name).is_file() for name in names)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _some(names: list[str]) -> str:
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
