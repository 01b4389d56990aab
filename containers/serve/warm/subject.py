"""What compiled code depends on: the subject of an artefact, and the key made of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from serve.environment import PREFIX
from serve.folder import CONFIGURATIONS, is_folder_path
from serve.json_text import members
from serve.model import MODEL, drafter_of
from serve.names import SPECULATION
from serve.redaction import Redactor
from serve.warm import device
from serve.warm.of_no_matter import matters
from serve.warm.software import distributions, is_for_cpu, software_digest

FORMAT = 1
CONTENT_VARIABLE = "PEAGLE_IMAGE_CONTENT"
"""The image's own: the digest of what is in it, the same under whichever name it is started."""
IMAGE_VARIABLE = "PEAGLE_IMAGE_DIGEST"
"""The toolkit's: of an image that does not know its content, where its name says the digest."""
QUANTIZATION = "hf_quant_config.json"
"""What some checkpoints say of their quantisation beside config.json; vLLM reads both."""
_KEY_LENGTH = 32
_LONGEST_SHOWN = 80
_MOST_SHOWN = 12
"""Names of a foreign subject, which may hold any number of them."""


def subject_of(environment: Mapping[str, str], chosen: Mapping[str, str]) -> dict[str, Any]:
    """The subject of this container.

    ``environment`` is as it was given, ``chosen`` with the model found and its folders made real.
    Holds no secret. Raises UnknownDevice.
    """
    installed = distributions()
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    return {
        "format": FORMAT,
        "image": environment.get(CONTENT_VARIABLE) or environment.get(IMAGE_VARIABLE, ""),
        "software": software_digest(installed),
        "device": device.cpu() if is_for_cpu(installed) else device.gpus(visible),
        "engine": engine_variables(environment),
        "pair": pair_of(chosen),
    }


def key_of(subject: Mapping[str, Any]) -> str:
    """The first 32 hexadecimal digits of the SHA-256 over the subject's canonical JSON."""
    return hashlib.sha256(canonical(subject)).hexdigest()[:_KEY_LENGTH]


def canonical(subject: Mapping[str, Any]) -> bytes:
    """JSON with sorted keys and no spaces."""
    text = json.dumps(subject, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return text.encode()


def engine_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that may change what the engine compiles."""
    redactor = Redactor(environment)
    names = sorted(name for name in environment if matters(name))
    return {name: redactor.text(environment[name]) for name in names}


def pair_of(chosen: Mapping[str, str]) -> dict[str, str | None]:
    """Target and drafter: what their config.json holds, or which revision of the hub's they are."""
    drafter = drafter_of(chosen)
    speculation = members(chosen[SPECULATION]) if SPECULATION in chosen else {}
    revision = speculation["revision"].value if "revision" in speculation else None
    return {
        "target": _model(chosen[MODEL], chosen.get(f"{PREFIX}REVISION")),
        "drafter": _model(drafter, revision) if drafter else None,
    }


def differences(subject: Mapping[str, Any], other: Any) -> list[str]:
    """In what ``other``, somebody's subject, is not like ``subject``; a few words for each."""
    if not isinstance(other, dict):
        return ["everything"]
    found = []
    image = _image(subject["image"], other.get("image"))
    for part, word in (("image", image), ("software", "the software"), ("pair", "")):
        if subject[part] != other.get(part):
            found += _parts(subject[part], other.get(part)) if part == "pair" else [word]
    if subject["device"] != other.get("device"):
        theirs, ours = _shown(other.get("device")), _shown(subject["device"])
        found.append(f"the device ({theirs}; here {ours})")
    names = _changed(subject["engine"], other.get("engine"))
    if names:
        found.append(f"the engine's arguments ({_listed(names)})")
    return found or ["the format"]


def _model(path: str, revision: object) -> str:
    if not is_folder_path(path):
        return f"{path}@{revision or ''}"
    for name in CONFIGURATIONS:
        file, beside = Path(path) / name, Path(path) / QUANTIZATION
        if file.is_file():
            more = beside.read_bytes() if beside.is_file() else b""
            return hashlib.sha256(file.read_bytes() + more).hexdigest()
    return ""


def _image(ours: str, theirs: Any) -> str:
    """The image, and what helps where only one of the two is known."""
    if bool(ours) is bool(theirs):
        return "the image"
    whose = "the artefact's" if ours else "this one"
    return f"the image (of {whose} nobody has said the digest: name both NAME@sha256:...)"


def _parts(ours: dict[str, Any], theirs: Any) -> list[str]:
    known = [f"the {name}" for name in _changed(ours, theirs) if name in ours]
    return known or ["the pair"]


def _changed(ours: dict[str, Any], theirs: Any) -> list[str]:
    """The names whose values differ."""
    other = theirs if isinstance(theirs, dict) else {}
    return sorted(name for name in {*ours, *other} if ours.get(name) != other.get(name))


def _listed(names: list[str]) -> str:
    """Some of the names, and how many there are more."""
    shown = [name[:_LONGEST_SHOWN] for name in names[:_MOST_SHOWN]]
    more = [f"{len(names) - len(shown)} more"] if len(names) > len(shown) else []
    return ", ".join(shown + more)


def _shown(device: Any) -> str:
    """A device in a few words."""
    facts = device if isinstance(device, dict) else {}
    gpus = facts.get("gpus")
    if isinstance(gpus, list) and gpus:
        text = f"{len(gpus)} x {gpus[0]}, driver {facts.get('driver')}"
    else:
        text = f"{facts.get('cpu')} {str(facts.get('instructions'))[:8]}"
    return text[:_LONGEST_SHOWN]
