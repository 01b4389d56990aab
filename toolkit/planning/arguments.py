"""vLLM's arguments, as a list: nothing is glued together, nothing goes through a shell."""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.catalog.models import EngineSetting, Value
from toolkit.planning.choice import Choice
from toolkit.planning.memory import GPU_MEMORY_UTILIZATION
from toolkit.planning.models import Reason, Speculation
from toolkit.planning.settings import text_of
from toolkit.planning.speculation import speculative_config
from toolkit.planning.streaming import LOADER
from toolkit.planning.weights import Placed

_UTILIZATION = "gpu-memory-utilization"
_LOAD_FORMAT = "load-format"
_STREAMED = EngineSetting(
    name=_LOAD_FORMAT, value=LOADER, because="--weights-by stream: the engine reads them from S3"
)


def engine_arguments(
    *,
    served_as: str,
    placed: Placed,
    max_model_len: int,
    concurrency: int,
    tensor_parallel_size: int,
    settings: Mapping[str, EngineSetting],
    speculation: Speculation | None,
) -> Choice[tuple[str, ...]]:
    """vLLM's argv without the program, and a reason for every setting of the catalogue."""
    arguments = ["--model", placed.target.engine_path]
    if placed.target.revision is not None:
        arguments += ["--revision", placed.target.revision]
    arguments += [
        *("--served-model-name", served_as),
        *("--max-model-len", str(max_model_len)),
        *("--max-num-seqs", str(concurrency)),
        *("--tensor-parallel-size", str(tensor_parallel_size)),
    ]
    if _UTILIZATION not in settings:
        arguments += [f"--{_UTILIZATION}", str(GPU_MEMORY_UTILIZATION)]
    reasons: list[Reason] = []
    if placed.target.streamed:
        settings = {**settings, _LOAD_FORMAT: _STREAMED}
    for name, setting in settings.items():
        arguments += as_arguments(name, setting.value)
        shown = text_of(setting.value)
        reasons.append(Reason(what=f"--{name}", value=shown, because=setting.because))
    if speculation is not None:
        arguments += ["--speculative-config", speculative_config(speculation, placed.drafter)]
    return Choice(tuple(arguments), tuple(reasons))


def as_arguments(name: str, value: Value) -> list[str]:
    """One setting as arguments: ``--name``, ``--no-name``, or ``--name value``."""
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", text_of(value)]
