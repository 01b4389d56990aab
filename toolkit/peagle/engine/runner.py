"""How a plan runs on this machine: as a process on its GPUs, as a process of the CPU engine, to
which its environment is adapted, or in a container with the environment and mounts of SageMaker."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from peagle.checkpoints.files import FolderSource, files_read
from peagle.data import weights_folder
from peagle.engine import state
from peagle.engine.gpus import VISIBLE_DEVICES, Gpu, Gpus, check_driver, choose_gpus, visible_gpus
from peagle.engine.machine import (
    Machine,
    check_compiler,
    check_machine,
    find_engine,
    this_machine,
)
from peagle.engine.process import (
    HUB_VARIABLES,
    INHERITED_VARIABLES,
    LOOPBACK,
    EngineProcess,
    free_port,
    is_alive,
    refuse_code,
    remove_container,
    start_engine,
    start_program,
)
from peagle.errors import Fix, Refused, UserError
from peagle.images.docker import Docker, Image, check_pair, list_images, show_image
from peagle.planning.plan import Plan
from peagle.planning.weights import local_weights
from peagle.render.formats.compose import (
    CACHE_VOLUME,
    HEALTH_COMMAND,
    SHARED_MEMORY,
    TMPFS,
    compose_text,
)
from peagle.render.image import CACHE_FOLDER, RuntimeKind, serve_digest
from peagle.store import home, private_folder
from peagle.vllm.defaults import GPU_MEMORY_UTILIZATION
from peagle_serve.contract import (
    CACHE_VARIABLE,
    COLLECT,
    DEFAULT_PORT,
    ENFORCE_EAGER,
    IMAGE_DIGEST_VARIABLE,
    ML_ROOT,
    MODEL,
    MODEL_FOLDER,
    PREFIX,
    SPECULATION,
    WARM_FOLDER,
    WARM_FOLDER_VARIABLE,
    WARM_MODE_VARIABLE,
    WARM_PINS_VARIABLE,
)
from peagle_serve.environment import read_speculative_config
from peagle_serve.weights import loads_files

LARGEST_SHARE_OF_MEMORY = 0.5
"""The largest share of memory for weights; the KV cache, vLLM and other programs use the rest."""

_QUANTIZATION, _UTILIZATION = f"{PREFIX}QUANTIZATION", f"{PREFIX}GPU_MEMORY_UTILIZATION"
_DROPPED = (
    f"{PREFIX}KV_CACHE_DTYPE", _QUANTIZATION, _UTILIZATION,
    f"{PREFIX}ENABLE_EXPERT_PARALLEL", f"{PREFIX}ATTENTION_BACKEND",
    f"{PREFIX}MAX_CUDAGRAPH_CAPTURE_SIZE", f"{PREFIX}CUDAGRAPH_CAPTURE_SIZES",
    f"{PREFIX}COMPILATION_CONFIG", f"{PREFIX}MOE_BACKEND", "HF_HOME", "VLLM_USE_FLASHINFER",
    "VLLM_FLASHINFER", "VLLM_ATTENTION_BACKEND", "CUDA_", "NCCL_",
)  # fmt: skip
"""Beginnings of the variables that concern a GPU, or a download."""
_ONE_RANK = (
    f"{PREFIX}TENSOR_PARALLEL_SIZE",
    f"{PREFIX}PIPELINE_PARALLEL_SIZE",
    f"{PREFIX}DATA_PARALLEL_SIZE",
)
_RELEASE_SECONDS = 10.0
"""How long the driver may take to free the memory of an engine that has ended."""
_ADDED: dict[str, tuple[str, str]] = {
    "HF_HUB_OFFLINE": ("1", "all weights are on this machine"),
    "VLLM_NO_USAGE_STATS": ("1", "usage statistics are off"),
    f"{PREFIX}DISTRIBUTED_EXECUTOR_BACKEND": ("uni", "one process fewer, a third faster to start"),
    f"{PREFIX}BLOCK_SIZE": (
        "32",
        "the prefix cache holds whole blocks; vLLM's 128 on a CPU would exceed short conversations",
    ),
    "VLLM_ENABLE_V1_MULTIPROCESSING": ("0", "required by the uni backend on a CPU"),
}
_UNCOMPILED = {ENFORCE_EAGER: ("true", "compilation takes a minute and gains little on a CPU")}
_COMPILED = (
    "the model is compiled, as on a GPU: starting takes a minute longer, unless a warm start is "
    "restored"
)
_KV_CACHE_SHARE = 16
_KV_CACHE_LARGEST_GIB = 8


def adapt_to_cpu(
    environment: Mapping[str, str], machine: Machine, compiled: bool = False
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The environment for the CPU engine, and one note for each change."""
    kept: dict[str, str] = {}
    notes: list[str] = []
    for name, value in environment.items():
        if name.startswith(_DROPPED):
            notes.append(f"{name}={value} is dropped: the CPU engine has no use for it")
        else:
            kept[name] = value
    for name in _ONE_RANK:
        if kept.get(name, "1") != "1":
            notes.append(f"{name}={kept[name]} is set to 1: a CPU has one rank")
            kept[name] = "1"
    planned = valid_speculation(kept)
    dropped = {"quantization", "attention_backend"} & planned.keys()
    speculation = {key: value for key, value in planned.items() if key not in dropped}
    if dropped:
        notes.append(f"{', '.join(sorted(dropped))} of the speculation is dropped: it is for a GPU")
    if planned.get("draft_tensor_parallel_size", 1) != 1:
        notes.append("draft_tensor_parallel_size is set to 1: a CPU has one rank")
        speculation["draft_tensor_parallel_size"] = 1
    if speculation != planned:
        kept[SPECULATION] = json.dumps(speculation, ensure_ascii=False)
    # vLLM allocates the KV cache at start: a sixteenth of memory, 1 to 8 whole GiB.
    gib = max(1, min(_KV_CACHE_LARGEST_GIB, machine.memory_bytes // 2**30 // _KV_CACHE_SHARE))
    threads = str(max(1, machine.cores - 1))
    added = {
        **_ADDED,
        "VLLM_CPU_KVCACHE_SPACE": (str(gib), "GiB for the KV cache"),
        "OMP_NUM_THREADS": (threads, "one core is for the API server"),
        **({} if compiled else _UNCOMPILED),
    }
    for name, (value, because) in added.items():
        if name not in kept:
            kept[name] = value
            notes.append(f"{name}={value}: {because}")
    if compiled and ENFORCE_EAGER not in kept:
        notes.append(_COMPILED)
    return kept, tuple(notes)


def cannot_run(environment: Mapping[str, str], weight_bytes: int, machine: Machine) -> str | None:
    """Why the CPU engine cannot run ``environment``, whose weights have ``weight_bytes``; or
    ``None``."""
    for what, path in model_paths(environment).items():
        if not path.startswith(f"{ML_ROOT}/"):
            return f"without an NVIDIA GPU only local weights run, not its {what} ({path})"
    if _QUANTIZATION in environment:
        return f"its weights are quantized ({environment[_QUANTIZATION]})"
    if valid_speculation(environment).get("method") == "suffix":
        return "its method suffix needs Arctic Inference, which the CPU engine lacks"
    allowed = machine.memory_bytes * LARGEST_SHARE_OF_MEMORY
    if weight_bytes > allowed:
        return (
            f"its weights take {weight_bytes / 2**30:.1f} GiB; the limit is half of this machine's "
            f"memory, {allowed / 2**30:.1f} GiB"
        )
    return None


def model_paths(environment: Mapping[str, str]) -> dict[str, str]:
    """The paths that vLLM loads: ``target``, and ``drafter`` if it has weights."""
    paths = {"target": environment.get(MODEL, MODEL_FOLDER)}
    drafter = valid_speculation(environment).get("model")
    if isinstance(drafter, str):
        paths["drafter"] = drafter
    return paths


def valid_speculation(environment: Mapping[str, str]) -> dict[str, Any]:
    """vLLM's speculative configuration; empty for an invalid one, which the engine rejects."""
    with suppress(ValueError):
        return read_speculative_config(environment)
    return {}


def local_folders(plan: Plan) -> dict[str, Path]:
    """Path in the container -> folder of this machine, for local weights. Raises UserError, also
    for a folder without weights."""
    folders = {}
    for weights in local_weights(plan):
        folder = folders[weights.engine_path] = weights_folder(weights.location)
        if not folder.is_dir():
            message = f"the plan's weights {weights.location} are not on this machine"
            fix = "make the plan on this machine, or copy the folder"
            raise UserError(message, fix, code="no-such-folder")
        if loads_files(plan.environment):
            source = FolderSource(folder)
            files_read(source.location, source.names(), source.read)
    return folders


def link_folders(folders: Mapping[str, Path], ml_root: Path) -> None:
    """Link folders, by their paths in the container, below ``ml_root``: its ``/opt/ml``."""
    for path, folder in folders.items():
        link = ml_root / PurePosixPath(path).relative_to(ML_ROOT)
        private_folder(link.parent)
        link.symlink_to(folder.resolve(), target_is_directory=True)


START_SECONDS = 3600
"""SageMaker's longest start: until then, an engine that does not answer yet is starting."""

_WARM_MOUNT = f"{ML_ROOT}/{WARM_FOLDER}"
Record = Callable[[EngineProcess], object]


@dataclass(frozen=True)
class Container:
    """A container to run; ``mounts`` maps a path in the container to a folder of this machine."""

    name: str
    image: str
    environment: Mapping[str, str]
    mounts: Mapping[str, Path]
    port: int
    gpus: bool = False


def container_name(kind: str, name: str) -> str:
    """A name that is unique to this ``$PEAGLE_HOME``."""
    digest = hashlib.sha256(str(home()).encode()).hexdigest()[:8]
    return f"peagle-{kind}-{name}-{digest}"


def run_arguments(container: Container) -> list[str]:
    """Docker's arguments. All users can read an argv: it has names of variables, and no values."""
    # A shared volume, and an anonymous one for a container that collects, which empties its cache.
    # The path stays the same, as some caches (Triton's) contain absolute paths.
    collects = container.environment.get(WARM_MODE_VARIABLE) == COLLECT
    volume = "" if collects else f"src={CACHE_VOLUME},"
    arguments = ["run", "--rm", "--name", container.name]
    arguments += ["--publish", f"{LOOPBACK}:{container.port}:{DEFAULT_PORT}"]
    arguments += ["--read-only", "--tmpfs", TMPFS, "--shm-size", SHARED_MEMORY]
    arguments += ["--mount", f"type=volume,{volume}dst={CACHE_FOLDER}"]
    arguments += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    arguments += ["--health-cmd", shlex.join(HEALTH_COMMAND), "--health-interval", "10s",
                  "--health-start-period", f"{START_SECONDS}s"]  # fmt: skip
    arguments += ["--gpus", "all"] if container.gpus else []
    for path, folder in sorted(container.mounts.items()):
        source = str(folder.resolve()).replace('"', '""')  # one line of CSV
        arguments += ["--mount", f'type=bind,"src={source}",dst={path},readonly']
    for name in sorted(container.environment):
        arguments += ["--env", name]
    return [*arguments, container.image, "serve"]


def start_container(
    docker: Docker, container: Container, log: Path, record: Record = lambda process: None
) -> EngineProcess:
    """Start it, after removing an earlier container of that name."""
    for name in container.environment:
        # Variables of the ``docker`` command; the container gets its own from the image.
        if name in ("PATH", "HOME") or name.startswith("DOCKER_"):
            message = f"{name} cannot be set for a container"
            raise UserError(message, "remove it from the plan", "reserved-variable")
    remove_container(container.name)
    argv = docker.argv(*run_arguments(container))
    variables = {**docker.variables(), **container.environment}
    return start_program(argv, variables, container.port, log, record, container.name)


def compose_file(container: Container) -> str:
    """The text of a compose file for the container."""
    heading = f"{container.name}: the same as `peagle local up --engine docker`.\n"
    return compose_text(
        f"{heading}Start it with Docker Compose: --file FILE up\n",
        name=container.name,
        image=container.image,
        environment=container.environment,
        mounts={path: str(folder.resolve()) for path, folder in container.mounts.items()},
        address=f"{LOOPBACK}:{container.port}",
        start_seconds=START_SECONDS,
        gpus="all" if container.gpus else None,
    )


def find_image(
    docker: Docker, plan: Plan, runtime: RuntimeKind, named: str | None = None,
    command: Sequence[str] = (),
) -> Image | None:  # fmt: skip
    """``named``, else the newest image of the plan's pair and version with this entrypoint and no
    weights; or ``None``. Raises UserError for an image of another pair or runtime."""
    if named is None:
        images = list_images(docker, pair=plan.pair, runtime=runtime, vllm=plan.runtime.vllm,
                             serve=serve_digest(), weights="mounted")  # fmt: skip
        return images[0] if images else None
    image = show_image(docker, named)
    check_pair(image, plan.pair, command)
    if image.runtime != runtime:
        message = f"the image {named} is a {image.runtime} image"
        fix = "add --gpus" if image.runtime == "gpu" else "omit --gpus"
        raise UserError(message, fix, "image-of-another-runtime")
    return image


@dataclass(frozen=True)
class LocalRunner:
    """How to run a plan on this machine: in a container of ``image``, or as a process.

    ``gpus``: on GPUs, of which a container sees all, and a process as many as it needs;
    ``compiled``: compile on a CPU too; ``collecting``: start with empty caches, to offer what the
    engine compiles (``peagle warm``); ``variables`` are further ones of the engine's process;
    ``machine`` is what NVML has just reported, else it is read at each start."""

    image: Image | None = None
    gpus: bool = False
    compiled: bool = False
    collecting: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    machine: Gpus | None = None

    def local_environment(self, plan: Plan) -> tuple[dict[str, str], tuple[str, ...]]:
        """The plan's environment on this machine, and notes on how it differs. Raises Refused."""
        engine = None
        if self.image is None:
            if not self.gpus:
                check_machine()
            refuse_code(plan.environment)
            if plan.target.weights.kind == "image":
                message = f"a process does not use {plan.runtime.image}, which has the weights"
                fix = "add --engine docker, or omit --baked-weights"
                raise Refused(message, fix, "weights-baked")
            engine = find_engine(plan.runtime.vllm, self.gpus)
        parts = plan.weights.values()
        location = next((part.location for part in parts if part.kind == "s3"), None)
        machine, reason = this_machine(), f"only AWS can read {location}" if location else None
        if reason is None and not self.gpus:
            folders = local_folders(plan).values()
            files = (file for folder in folders for file in folder.glob("*.safetensors"))
            size = sum(file.stat().st_size for file in files)
            reason = cannot_run(plan.environment, size, machine)
        if reason:
            command = ("peagle", "deploy", plan.target.id, "--sandbox")
            raise Refused(
                f"this machine cannot run {plan.pair}: {reason}",
                Fix("serve a small stand-in with the same settings", command),
                "not-runnable-here",
            )
        if self.gpus:
            return dict(plan.environment), ()
        if self.compiled and engine:
            check_compiler(engine.python)
        return adapt_to_cpu(plan.environment, machine, self.compiled)

    def choose_gpus(self, plan: Plan, copies: int = 1) -> list[list[Gpu]]:
        """The GPUs for the process of each copy: as many as the plan needs, which are free. Raises
        Refused, also for a driver that is too old."""
        if self.image or not self.gpus or not copies:
            return [[] for _ in range(copies)]
        gpus = visible_gpus(self.machine)
        check_driver(find_engine(plan.runtime.vllm, gpu=True), gpus)
        sizes = (int(plan.environment.get(name, "1")) for name in _ONE_RANK)
        share = float(plan.environment.get(_UTILIZATION, GPU_MEMORY_UTILIZATION))
        running = [engine for engine in state.local_engines() if is_alive(engine.process)]
        taken = {uuid: engine.name for engine in running for uuid in engine.gpus}
        each = math.prod(sizes)
        until = time.monotonic() + _RELEASE_SECONDS
        while True:
            try:
                chosen = choose_gpus(gpus, each * copies, share, taken)
                return [chosen[start : start + each] for start in range(0, len(chosen), each)]
            except Refused:
                is_short = each * copies > len(gpus.gpus)
                if taken or self.machine or is_short or time.monotonic() > until:
                    raise
                time.sleep(0.5)
                gpus = visible_gpus()

    def start(
        self,
        plan: Plan,
        environment: Mapping[str, str],
        port: int,
        log: Path,
        record: Record,
        gpus: Sequence[Gpu] = (),
    ) -> EngineProcess:
        """Start the process on these ``gpus``, with links to its weights, or the container;
        ``record`` is called before."""
        if self.image:
            return start_container(Docker(), self.container(plan, environment, port), log, record)
        # By its port, not its name: vLLM drafts with EAGLE where the path of a head of another
        # method contains "eagle-", as in the name "peagle-gemma-4-31b-mtp" (config/speculative.py).
        ml_root = home() / "ml" / str(port)
        shutil.rmtree(ml_root, ignore_errors=True)
        link_folders(local_folders(plan), ml_root)
        variables = {**environment, **self._warm_variables(environment, str(state.warm_folder()))}
        variables |= self.variables
        if self.collecting:
            variables[CACHE_VARIABLE] = str(state.collected_folder(plan.name))
        engine = find_engine(plan.runtime.vllm, self.gpus)
        inherited = [*INHERITED_VARIABLES]
        if gpus:
            inherited += HUB_VARIABLES
            variables |= {
                VISIBLE_DEVICES: ",".join(gpu.uuid for gpu in gpus),
                "VLLM_NO_USAGE_STATS": "1",
            }
        return start_engine(engine, variables, ml_root, port, log, record, inherited)

    def container(
        self, plan: Plan, environment: Mapping[str, str], port: int, image: str = ""
    ) -> Container:
        """The container, with weights mounted unless the image has them, and warm starts."""
        assert self.image is not None, "a process has no container"
        warm = self._warm_variables(environment, _WARM_MOUNT)
        mounts = {} if self.image.baked else local_folders(plan)
        if WARM_FOLDER_VARIABLE in warm:
            mounts[_WARM_MOUNT] = state.warm_folder()
        digest = {IMAGE_DIGEST_VARIABLE: self.image.digest} if self.image.digest else {}
        return Container(
            name=container_name("local", plan.name),
            image=image or self.image.id,
            environment={**environment, **digest, **warm},
            mounts=mounts,
            port=port,
            gpus=self.gpus,
        )

    def compose(self, plan: Plan, port: int | None) -> tuple[str, int]:
        """The compose file, which names the image, and its port. Raises Refused."""
        assert self.image is not None, "a process has no container"
        environment, _ = self.local_environment(plan)
        published = port or free_port()
        container = self.container(plan, environment, published, self.image.name)
        return compose_file(container), published

    def _warm_variables(self, environment: Mapping[str, str], folder: str) -> dict[str, str]:
        """The variables to collect, or to restore from ``folder`` what the plan pins or the machine
        has."""
        if self.collecting:
            return {WARM_MODE_VARIABLE: COLLECT}
        if not (self.compiled or self.gpus) or not state.warm_folder().is_dir():
            return {}
        pins = environment.get(WARM_PINS_VARIABLE) or state.warm_pins()
        return {WARM_FOLDER_VARIABLE: folder, **({WARM_PINS_VARIABLE: pins} if pins else {})}


AS_PROCESS = LocalRunner()
"""In a process, uncompiled."""
