"""A container with a mounted pair and a folder of warm starts."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peagle_serve.warm import Manifest
from tests.unit.containers.artifacts import artifact
from tests.unit.containers.recording import Container, container_in, documents
from tests.unit.containers.weights import pair

_SUBJECTS: dict[tuple[tuple[str, str], ...], str] = {}
PAIR = {"SM_VLLM_MODEL": "/opt/ml/model/target"}


class World:
    """A container with a mounted pair and artifacts."""

    def __init__(self, folder: Path) -> None:
        self.container: Container = container_in(folder / "engine")
        (folder / "engine" / "torch-2.13.0+cpu.dist-info").mkdir()
        self.folder = folder
        self.model = folder / "ml" / "model"
        self.artifacts = self.model / "warm"
        pair(self.model)

    def variables(self, **more: str) -> dict[str, str]:
        """The environment of a container with an empty home."""
        drafter = {"method": "eagle3", "model": "/opt/ml/model/head", "num_speculative_tokens": 5}
        return {
            **PAIR,
            "SM_VLLM_SPECULATIVE_CONFIG": json.dumps({**drafter, "parallel_drafting": True}),
            "SM_VLLM_MAX_NUM_SEQS": "4",
            "PEAGLE_ML_ROOT": str(self.folder / "ml"),
            "HOME": str(self.folder / "home"),
            "PEAGLE_WARM_SHA256": "any",
            **more,
        }

    def start(self, **more: str) -> tuple[list[dict[str, Any]], Mapping[str, str]]:
        """The entrypoint's own lines of the log, and the engine's environment."""
        done = self.container.run(self.variables(**more))
        entries = [line for line in documents(done) if line.get("from") != "engine"]
        record = json.loads(self.container.record.read_text(encoding="utf-8"))
        return entries, record["environment"]

    def collected(self, **more: str) -> Manifest:
        """An artifact that matches this container. Its subject does not depend on the folder, so
        the container collects once for all tests."""
        key = tuple(more.items())
        if key not in _SUBJECTS:
            first = str(self.folder / "first")
            _, variables = self.start(PEAGLE_WARM="collect", PEAGLE_CACHE=first, **more)
            _SUBJECTS[key] = variables["PEAGLE_WARM_SUBJECT"]
        return artifact(self.artifacts, json.loads(_SUBJECTS[key]))

    @property
    def cache(self) -> Path:
        return self.folder / "home" / ".cache" / "peagle" / "warm"


def is_cold(variables: Mapping[str, str]) -> bool:
    return not {"VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "VLLM_USE_AOT_COMPILE"} & set(variables)
