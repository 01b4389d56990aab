"""One pair in a container: its folders, its environment, and ``peagle_serve`` as a process.

The container starts as on SageMaker. Everything that a start may write is below one folder (home,
temporary files, caches), so a cold start is one without that folder, and files that a start
compiles outside of its caches can be found. Durations are in seconds from the entrypoint's start.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measurements.gpu import probe
from measurements.gpu.geometry import CARD_K, ROOT, Setting, engine_arguments, speculation
from measurements.gpu.host import ENGINE_ENVIRONMENT
from peagle.data import entrypoint_folder

REPOSITORY = Path(__file__).resolve().parents[2]
SERVE = entrypoint_folder()
STOP_SECONDS = 40.0
_POLL_SECONDS = 0.1
_NOT_PASSED_ON = re.compile(
    r"AWS_|SM_VLLM_|HF_TOKEN|PEAGLE_|VLLM_CACHE_ROOT$|TRITON_CACHE_DIR$|TORCHINDUCTOR_CACHE_DIR$"
    r"|XDG_CACHE_HOME$|HOME$|TMPDIR$"
)
REQUEST = {"prompt": "def main(", "max_tokens": 64, "temperature": 0, "ignore_eos": True}

TINY = REPOSITORY / "model_catalog" / "peagle" / "tiny"
PAIRS = ("gpt-oss-20b", "qwen3-coder-30b")
TINY_PAIR = "tiny"
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
              "chat_template.jinja")  # fmt: skip
_NOT_FOR_CONTAINER = ("model", "skip_tokenizer_init", "speculative_config", "enforce_eager",
             "enable_prefix_caching", "limit_mm_per_prompt", "kv_cache_dtype",
             "tensor_parallel_size")  # fmt: skip
FOR_CPU = {
    "SM_VLLM_DISTRIBUTED_EXECUTOR_BACKEND": "uni",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "SM_VLLM_MAX_MODEL_LEN": "1024",
    "SM_VLLM_MAX_NUM_SEQS": "4",
}


@dataclass(frozen=True)
class PairFolder:
    """The folders of one pair; the same path on every machine, because caches may contain paths."""

    root: Path
    pair: str

    @property
    def folder(self) -> Path:
        return self.root / self.pair

    @property
    def artifacts(self) -> Path:
        """Where the container looks for artifacts by default."""
        return self.folder / "ml" / "model" / "warm"

    @property
    def written(self) -> dict[str, Path]:
        """Every folder that a start may write to, by the environment variable that sets it."""
        names = {"PEAGLE_CACHE": "cache", "HOME": "home", "TMPDIR": "tmp"}
        return {variable: self.folder / name for variable, name in names.items()}

    def prepare(self) -> None:
        """Lay out the pair as SageMaker mounts it, in an empty folder."""
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
        self.clear()

    def clear(self) -> None:
        """Remove everything that a start wrote, so that the next one is cold; artifacts stay."""
        for folder in self.written.values():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)

    def environment(self, warm: str, gpu: str | None) -> dict[str, str]:
        """The container's variables. ``warm`` is PEAGLE_WARM; without ``gpu`` it uses the CPU."""
        variables = {name: str(folder) for name, folder in self.written.items()}
        variables |= {
            "PEAGLE_WARM": warm,
            "PEAGLE_WARM_SHA256": "any",  # the artifacts are those of this run
            "PEAGLE_ML_ROOT": str(self.folder / "ml"),
            "SM_VLLM_MODEL": "/opt/ml/model/target",
            "SM_VLLM_SPECULATIVE_CONFIG": json.dumps(self._speculation()),
            **ENGINE_ENVIRONMENT,
        }
        if gpu is None:
            return {**variables, **FOR_CPU}
        return {**variables, **self._for_gpu(gpu)}

    def _for_gpu(self, gpu: str) -> dict[str, str]:
        arguments = engine_arguments(self._setting())
        variables = {
            f"SM_VLLM_{name.upper()}": str(value)
            for name, value in arguments.items()
            if name not in _NOT_FOR_CONTAINER
        }
        inherited = os.environ.get("PYTHONPATH")
        probe_settings = {"stem": str(self.folder / "tmp" / "probe"), "own": self._setting().own()}
        return {
            **variables,
            "CUDA_VISIBLE_DEVICES": gpu,
            # The engine imports the probe, from outside of the repository's root.
            "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), inherited])),
            # The head keeps its own embedding, as the published heads do.
            "SM_VLLM_WORKER_EXTENSION_CLS": probe.EXTENSION,
            probe.VARIABLE: json.dumps(probe_settings),
        }

    def _setting(self) -> Setting:
        return Setting(self.pair, "p-eagle", CARD_K[self.pair])

    def _speculation(self) -> dict[str, Any]:
        settings = {"model": "/opt/ml/model/drafter"}
        if self.pair == TINY_PAIR:
            own_k = {"method": "eagle3", "num_speculative_tokens": 5, "parallel_drafting": True}
            return {**own_k, **settings}
        return {**(speculation(self._setting()) or {}), **settings}


def folder_sizes(folder: Path, depth: int, since: float = 0.0) -> dict[str, int]:
    """Bytes of the files below ``folder`` by the first ``depth`` parts of their paths.

    Largest first. With ``since`` (a Unix time) only files that were written later; restored files
    keep their older times.
    """
    sizes: dict[str, int] = {}
    for path in folder.rglob("*"):
        try:
            facts = path.lstat()
        except OSError:  # removed in the meantime
            continue
        if stat.S_ISREG(facts.st_mode) and facts.st_mtime >= since:
            name = "/".join(path.relative_to(folder).parts[:depth])
            sizes[name] = sizes.get(name, 0) + facts.st_size
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


class NotReady(Exception):
    """The container exited or timed out before it was ready; the message says which."""


class Container:
    """``peagle_serve`` as a process. Call ``stop`` in any case."""

    def __init__(
        self,
        python: str,
        environment: Mapping[str, str],
        log: Path,
        cpus: Sequence[int] = (),
    ) -> None:
        self.port = _free_port()
        self.environment = {
            **{name: value for name, value in os.environ.items() if not _NOT_PASSED_ON.match(name)},
            "SM_VLLM_HOST": "127.0.0.1",
            "SAGEMAKER_BIND_TO_PORT": str(self.port),
            **environment,
        }
        self.log = log
        self.begin = time.monotonic()
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [python, str(SERVE), "serve"],
                env=self.environment,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        if cpus:
            os.sched_setaffinity(self.process.pid, cpus)

    def wait_ready(self, seconds: float) -> float:
        """Seconds until ``/ping`` answers 200, which needs a draft. Raises NotReady."""
        while time.monotonic() - self.begin < seconds:
            if self.process.poll() is not None:
                raise NotReady(f"exited with {self.process.returncode}: {self._last_entry()}")
            with contextlib.suppress(OSError):
                if self.request("GET", "/ping")[0] == 200:
                    return round(time.monotonic() - self.begin, 2)
            time.sleep(_POLL_SECONDS)
        raise NotReady(f"not ready after {seconds:.0f} s: {self._last_entry()}")

    def first_answer(self) -> float:
        """Seconds for 64 tokens, including kernels that are compiled on first use.

        Raises NotReady if the request fails.
        """
        begin = time.monotonic()
        status, body = self.request("POST", "/invocations", json.dumps(REQUEST).encode())
        if status != 200:
            raise NotReady(f"the first request failed with {status}: {body[:300]!r}")
        return round(time.monotonic() - begin, 3)

    def request(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Status and body of the response. Raises OSError while the port is closed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            kind = {"Content-Type": "application/json"}
            connection.request(method, path, body or None, {**kind, **(headers or {})})
            response = connection.getresponse()
            return response.status, response.read()
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()

    def engine_variables(self) -> dict[str, str]:
        """The variables that the entrypoint added for the engine: where its caches are."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        raw = Path(f"/proc/{children.split()[0]}/environ").read_bytes()
        pairs = (part.partition(b"=") for part in raw.split(b"\0") if part)
        variables = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
        return {
            name: value
            for name, value in variables.items()
            if self.environment.get(name) != value and not name.startswith(("PYTHON", "PEAGLE_"))
        }

    def log_entries(self) -> list[dict[str, Any]]:
        """The entries of the log so far."""
        entries = []
        for line in self.log.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                entries.append(json.loads(line))
        return [entry for entry in entries if isinstance(entry, dict)]

    def stop(self) -> None:
        """Stop it as SageMaker does, with SIGTERM; kill what still runs after 40 s."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_SECONDS)
        for pid in _session(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def _last_entry(self) -> str:
        entries = self.log_entries()
        return json.dumps(entries[-1])[:600] if entries else "the log is empty"


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _session(leader: int) -> list[int]:
    """The running processes of a session; see proc_pid_stat(5)."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] not in "ZX":
                processes.append(int(path.parent.name))
    return processes
