"""The folders of one pair's starts, and what its container is told.

Everything that a start may write lies below one folder: home, temporary files, caches. So a cold
start is one without them, and what was compiled elsewhere than into the caches can be seen.
"""

from __future__ import annotations

import json
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu import probe
from benchmarks.gpu.geometry import CARD_K, ROOT, Setting, engine_arguments, speculation

TINY = Path(__file__).resolve().parents[2] / "model_catalog" / "peagle" / "tiny"
PAIRS = ("gpt-oss-20b", "qwen3-coder-30b")
TINY_PAIR = "tiny"
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
              "chat_template.jinja")  # fmt: skip
_LEFT_OUT = ("model", "skip_tokenizer_init", "speculative_config", "enforce_eager",
             "enable_prefix_caching", "limit_mm_per_prompt", "kv_cache_dtype",
             "tensor_parallel_size")  # fmt: skip
_FOR_CPU = {
    "SM_VLLM_DISTRIBUTED_EXECUTOR_BACKEND": "uni",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "SM_VLLM_MAX_MODEL_LEN": "1024",
    "SM_VLLM_MAX_NUM_SEQS": "4",
}


@dataclass(frozen=True)
class Place:
    """Where one pair is served from. The same on every machine: caches may hold paths."""

    root: Path
    pair: str

    @property
    def folder(self) -> Path:
        return self.root / self.pair

    @property
    def artefacts(self) -> Path:
        """Where the container looks for them by itself."""
        return self.folder / "ml" / "model" / "warm"

    @property
    def written(self) -> dict[str, Path]:
        """All that a start may write, by the variable that leads it there."""
        names = {"PEAGLE_CACHE": "cache", "HOME": "home", "TMPDIR": "tmp"}
        return {variable: self.folder / name for variable, name in names.items()}

    def prepare(self) -> None:
        """Lay out the pair as SageMaker mounts it; nothing else is left there."""
        shutil.rmtree(self.folder, ignore_errors=True)
        model = self.folder / "ml" / "model"
        if self.pair == TINY_PAIR:
            shutil.copytree(TINY / "target", model / "target")
            shutil.copytree(TINY / "p-eagle", model / "drafter")
        else:
            for name, source in (("target", "target"), ("drafter", "p-eagle")):
                (model / name).mkdir(parents=True)
                shutil.copy(ROOT / self.pair / source / "config.json", model / name)
            for name in _TOKENIZER:
                shutil.copy(TINY / "target" / name, model / "target")
        self.forget()

    def forget(self) -> None:
        """Remove all that a start wrote: the next one is cold, but for its artefact."""
        for folder in self.written.values():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)

    def environment(self, warm: str, gpu: str | None) -> dict[str, str]:
        """What the container is told; ``warm`` is PEAGLE_WARM, and no ``gpu`` means the CPU."""
        variables = {name: str(folder) for name, folder in self.written.items()}
        variables |= {
            "PEAGLE_WARM": warm,
            "PEAGLE_ML_ROOT": str(self.folder / "ml"),
            "SM_VLLM_MODEL": "/opt/ml/model/target",
            "SM_VLLM_SPECULATIVE_CONFIG": json.dumps(self._speculation()),
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        if gpu is None:
            return {**variables, **_FOR_CPU}
        return {**variables, **self._for_gpu(gpu)}

    def _for_gpu(self, gpu: str) -> dict[str, str]:
        arguments = engine_arguments(self._setting())
        variables = {
            f"SM_VLLM_{name.upper()}": str(value)
            for name, value in arguments.items()
            if name not in _LEFT_OUT
        }
        own = {"stem": str(self.folder / "tmp" / "probe"), "own": self._setting().own()}
        return {
            **variables,
            "CUDA_VISIBLE_DEVICES": gpu,
            # The head keeps its own embedding, as the published ones do.
            "SM_VLLM_WORKER_EXTENSION_CLS": probe.EXTENSION,
            probe.VARIABLE: json.dumps(own),
        }

    def _setting(self) -> Setting:
        return Setting(self.pair, "p-eagle", CARD_K[self.pair])

    def _speculation(self) -> dict[str, Any]:
        own = {"model": "/opt/ml/model/drafter"}
        if self.pair == TINY_PAIR:
            own_k = {"method": "eagle3", "num_speculative_tokens": 5, "parallel_drafting": True}
            return {**own_k, **own}
        return {**(speculation(self._setting()) or {}), **own}


def sizes(folder: Path, depth: int, since: float = 0.0) -> dict[str, int]:
    """Bytes of the files below ``folder`` by the first ``depth`` parts of their paths, the largest
    first. With ``since`` only what was written later: what is restored keeps its older times."""
    found: dict[str, int] = {}
    for path in folder.rglob("*"):
        try:
            facts = path.lstat()
        except OSError:  # it has vanished meanwhile
            continue
        if stat.S_ISREG(facts.st_mode) and facts.st_mtime >= since:
            name = "/".join(path.relative_to(folder).parts[:depth])
            found[name] = found.get(name, 0) + facts.st_size
    return dict(sorted(found.items(), key=lambda one: -one[1]))
