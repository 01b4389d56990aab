"""Whether this image was built for the pair that its environment names.

``pair.json`` lies beside the entrypoint in an image that was built from a plan (the toolkit's
``rendering/image.py`` writes it). A mistake is

* another target, or another drafter: by their ids where the environment names ids, else by what
  their config.json say of them, as far as that tells them apart
* another method, or the other value of ``parallel_drafting``: a P-EAGLE head then drafts badly, and
  nothing warns

Another K is none, nor is no speculation at all: who measures wants both of the same image. What
cannot be told, or has no ``pair.json`` beside it, is not spoken of.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from serve.errors import WrongEnvironment
from serve.folder import is_folder_path
from serve.json_text import members
from serve.model import MODEL, drafter_of
from serve.names import SPECULATION

PAIR_FILE = Path(__file__).resolve().parent.parent / "pair.json"
_OTHER_IMAGE = "take an image of that pair: peagle image build PAIR; or name this image's own pair"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_NAMES = {
    "architecture": "architecture",
    "hidden_size": "hidden size",
    "num_hidden_layers": "number of layers",
    "vocab_size": "vocabulary",
}

Document = dict[str, Any]


def check_built_for(chosen: Mapping[str, str], file: Path = PAIR_FILE) -> None:
    """Raise WrongEnvironment if ``file`` says that the image is for another pair.

    ``chosen`` is the environment with its model found (``with_model``).
    """
    built = _object(file)
    if not built.get("pair"):
        return
    for difference in _differences(built, chosen):
        raise WrongEnvironment(
            f"this image was built for {built['pair']}, and {difference}", _OTHER_IMAGE
        )


def _differences(built: Document, chosen: Mapping[str, str]) -> Iterator[str]:
    yield from _model("target", built, chosen[MODEL], MODEL)
    if SPECULATION not in chosen:
        return
    asked = {name: part.value for name, part in members(chosen[SPECULATION]).items()}
    if built.get("method") is None:
        yield f"{SPECULATION} asks for speculation"
        return
    if asked.get("method") not in (None, built["method"]):
        yield f"{SPECULATION} has the method {asked['method']}, not {built['method']}"
    if bool(asked.get("parallel_drafting")) is not bool(built.get("parallel_drafting")):
        word = "without" if built.get("parallel_drafting") else "with"
        yield f"{SPECULATION} is {word} parallel_drafting"
    drafter = drafter_of(chosen)
    if drafter:
        yield from _model("drafter", built, drafter, f'"model" of {SPECULATION}')


def _model(role: str, built: Document, named: str, where: str) -> Iterator[str]:
    """In what the model that is named is not the one of the image."""
    if named.lower().startswith("s3://"):
        return  # What lies there is not read from here.
    if not is_folder_path(named):
        own, is_id = built.get(role), _HUB_ID.fullmatch(named)
        if is_id and isinstance(own, str) and own.casefold() != named.casefold():
            yield f"{where} is {named}"
        return
    facts = built.get("facts")
    known = facts.get(role) if isinstance(facts, dict) else None
    found = _facts(_object(Path(named) / "config.json"))
    for name, value in (known if isinstance(known, dict) else {}).items():
        if name in _NAMES and found.get(name, value) != value:
            yield f"{where} is {named}, whose {_NAMES[name]} is {found[name]}, not {value}"


def _facts(config: Document) -> Document:
    """The facts in a config.json that ``pair.json`` has too; of a text model inside of it."""
    inner = config.get("text_config")
    text = inner if isinstance(inner, dict) else config
    found = {name: text[name] for name in _NAMES if isinstance(text.get(name), int)}
    architectures = config.get("architectures")
    if isinstance(architectures, list) and architectures:
        found["architecture"] = architectures[0]
    return found


def _object(file: Path) -> Document:
    """The object in a file of JSON; an empty one where there is none."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        document = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(document, dict):
            return document
    return {}
