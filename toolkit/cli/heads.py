"""``--drafter FOLDER``: the user's own head on this machine, and a glance into it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from toolkit.cli.safetensors import tensor_names
from toolkit.errors import UserError
from toolkit.planning.own_heads import is_folder, is_s3


def own_head(drafter: str) -> dict[str, Any]:
    """The options ``drafter`` and, for a folder, ``drafter_config`` and ``drafter_tensors``.

    ``heads/mine`` is a folder where there is one, else a Hugging Face id; a word without a slash
    is a drafter of the catalogue (write ``./word`` for a folder). Raises UserError for a folder
    that holds no whole weights or no config.json.
    """
    folder = Path(drafter).expanduser()
    if is_s3(drafter) or not (is_folder(drafter) or ("/" in drafter and folder.is_dir())):
        return {"drafter": drafter}
    if not folder.is_dir():
        raise UserError(f"there is no folder {drafter}", "check the path given with --drafter")
    config, weights = _config(folder / "config.json"), sorted(folder.glob("*.safetensors"))
    if not weights:
        raise UserError(f"{drafter} holds no *.safetensors", "name the folder with the head itself")
    return {
        "drafter": str(folder.resolve()),
        "drafter_config": config,
        "drafter_tensors": tuple(name for path in weights for name in tensor_names(path)),
    }


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise UserError(message, "a head needs a config.json beside its weights") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}", "copy the head again") from error
    if not isinstance(config, dict):
        raise UserError(f"{path} holds no object", "copy the head again")
    return config
