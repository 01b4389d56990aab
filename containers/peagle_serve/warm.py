"""Warm starts: compile caches of one engine, restored for the next identical one.

Most of a cold start is compilation. With ``PEAGLE_WARM=collect`` an engine compiles into empty
folders and offers them through ``/invocations`` as an artifact: ``<key>.tar.gz`` and its manifest
``<key>.json``. Artifacts are stored in the folder ``warm/`` next to the weights.

The **subject** of an artifact is what compiled code depends on: the image, the installed software,
the device, the pair, and the engine's variables except those listed here, which change nothing
that is compiled. Unknown variables count: compiling once more is better than running code for
another configuration.

An artifact is code that the engine runs, so only archives whose SHA-256 is in
``PEAGLE_WARM_SHA256`` are restored. The other checks detect damage, not malicious code.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import io
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import tarfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from peagle_serve.checkpoint import CONFIGURATIONS, is_folder_path, names_in
from peagle_serve.contract import (
    ANY,
    ARCHIVE_SUFFIX,
    ARTIFACT_FORMAT,
    CACHE_VARIABLE,
    COLLECT,
    COLLECT_FOLDER_VARIABLE,
    IMAGE_CONTENT_VARIABLE,
    IMAGE_DIGEST_VARIABLE,
    MANIFEST_SUFFIX,
    MODEL,
    PREFIX,
    SHA256,
    SUBJECT_VARIABLE,
    WARM_FOLDER,
    WARM_FOLDER_VARIABLE,
    WARM_MODE_VARIABLE,
    WARM_PINS_VARIABLE,
    InvalidEnvironment,
    read_pins,
)
from peagle_serve.environment import NEGATION, distributions, is_for_cpu, read_speculative_config
from peagle_serve.json_reader import InvalidJson, open_regular, read, read_file, read_regular
from peagle_serve.logs import Log, Redactor, is_secret, restored_text
from peagle_serve.weights import artifact_folder, drafter_model

FOLDERS = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "CUDA_CACHE_PATH": "cuda",
    "DG_JIT_CACHE_DIR": "deep_gemm",
    "TVM_FFI_CACHE_DIR": "tvm_ffi",
    "CUTE_DSL_CACHE_DIR": "cute_dsl",
    "TILELANG_CACHE_DIR": "tilelang",
    "HUMMING_CACHE_DIR": "humming",
    "QUACK_CACHE_DIR": "quack",
}
"""Variable -> folder: all caches of vLLM and of its kernel libraries."""
LARGEST = 1 << 20
"""Bytes of a manifest."""
_LONGEST_DATE = 40


class Damaged(Exception):
    """An artifact that is damaged or invalid; the message says how."""


class NothingCompiled(Exception):
    """The engine has compiled nothing, or nothing that may be shared."""


class UnknownDevice(Exception):
    """The device cannot be determined; the message says why."""


class Manifest(NamedTuple):
    """``size`` and ``sha256`` are those of the archive, ``files`` and ``unpacked_bytes`` of its
    content. ``seconds_cold``: how long the engine that compiled it took from start to healthy."""

    key: str
    subject: Mapping[str, Any]
    size: int
    sha256: str
    files: int
    unpacked_bytes: int
    seconds_cold: float
    made: str

    def document(self) -> dict[str, Any]:
        """The content of the file."""
        return {"format": ARTIFACT_FORMAT, **self._asdict()}


def compute_key(subject: Mapping[str, Any]) -> str:
    """The first 32 hexadecimal digits of the SHA-256 over the subject's canonical JSON."""
    return hashlib.sha256(canonical(subject)).hexdigest()[:32]


def canonical(subject: Mapping[str, Any]) -> bytes:
    """The subject as canonical JSON."""
    text = json.dumps(subject, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return text.encode()


def locate_archive(place: Path) -> Path:
    """The archive that the key's folder ``place`` is packed into."""
    return place.with_name(f"{place.name}.collected.tar.gz")


def read_manifest(file: Path) -> Manifest:
    """The manifest in ``file``, whose name is its key. Raises Damaged, OSError."""
    try:
        return parse_manifest(read_file(file, LARGEST), file.name)
    except InvalidJson as error:
        raise Damaged(str(error)) from None


def read_sha256(content: bytes) -> str | None:
    """The SHA-256 of the archive, from a manifest of which nothing else is checked; ``None``
    without a valid one."""
    try:
        digest = read(content, "the manifest", limit=LARGEST)["sha256"]
    except (InvalidJson, LookupError, TypeError):
        return None
    return digest if isinstance(digest, str) and SHA256.fullmatch(digest) else None


def parse_manifest(document: Any, name: str) -> Manifest:
    """The manifest in ``document``; ``name`` is its file name. Raises Damaged."""
    values = document if isinstance(document, dict) else {}
    key, subject, digest = (values.get(field) for field in ("key", "subject", "sha256"))
    numbers: dict[str, Any] = {
        field: values.get(field) for field in ("size", "files", "unpacked_bytes", "seconds_cold")
    }
    if not (
        values.get("format") == ARTIFACT_FORMAT
        and isinstance(subject, dict)
        and key == compute_key(subject)
        and name == f"{key}{MANIFEST_SUFFIX}"
        and isinstance(digest, str)
        and SHA256.fullmatch(digest)
        and all(type(n) in (int, float) and 0 <= n <= 1 << 50 for n in numbers.values())
    ):
        raise Damaged(f"{name} is no manifest of an artifact")
    made = str(values.get("made", ""))[:_LONGEST_DATE]
    return Manifest(key=key, subject=subject, sha256=digest, made=made, **numbers)


_LEVEL = 3
"""gzip's level; higher ones hardly make kernels smaller."""
_NO_CACHE = ("vllm/assets", "vllm/media", "vllm/xla_cache")
_LEFT_OUT = (".safetensors", ".gguf", ".pt", ".pth", ".ckpt", ".lock", ".tmp", ".pid")
_CLASSES = "vllm/modelinfos/"
"""vLLM's information about its own classes, which exists without compiled code."""


def pack(place: Path, archive: Path, secrets: Iterable[str]) -> dict[str, Any]:
    """Pack the caches in ``place`` into ``archive``, which is complete or absent; the members of
    its manifest that are about the archive. Skips files that contain one of ``secrets`` (vLLM
    stores the inputs of its keys), and files that the engine removes meanwhile. Raises
    NothingCompiled, OSError."""
    hidden = [secret.encode() for secret in secrets]
    written: list[str] = []
    unpacked = 0
    partial = archive.with_name(f"{archive.name}{_PARTIAL}")
    try:
        with partial.open("w+b") as file:
            with (
                gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as out,
                tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as packed,
            ):
                for path in _cache_files(place):
                    try:
                        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
                        with os.fdopen(os.open(place / path, flags), "rb") as stream:
                            facts = os.fstat(stream.fileno())
                            content = stream.read() if stat.S_ISREG(facts.st_mode) else None
                    except OSError:
                        continue  # it is gone
                    if content is None or any(secret in content for secret in hidden):
                        continue
                    member = tarfile.TarInfo(path)
                    member.size = len(content)
                    # Rounded down: ninja, which builds FlashInfer's kernels, rebuilds files that
                    # look newer than in its record.
                    member.mtime = int(facts.st_mtime)
                    member.mode = 0o755 if facts.st_mode & stat.S_IXUSR else 0o644
                    packed.addfile(member, io.BytesIO(content))
                    written.append(path)
                    unpacked += member.size
            if all(path.startswith(_CLASSES) for path in written):
                raise NothingCompiled(
                    "the engine has compiled nothing that may be shared (does it run with "
                    "--enforce-eager?)"
                )
            size = file.tell()
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        partial.replace(archive)
    finally:
        partial.unlink(missing_ok=True)
    return {"size": size, "sha256": digest, "files": len(written), "unpacked_bytes": unpacked}


def _cache_files(place: Path) -> Iterator[str]:
    for name in sorted(FOLDERS.values()):
        for folder, below, files in os.walk(place / name):  # follows no link
            relative = Path(folder).relative_to(place).as_posix()
            below[:] = sorted(each for each in below if f"{relative}/{each}" not in _NO_CACHE)
            yield from (
                f"{relative}/{file}" for file in sorted(files) if not file.endswith(_LEFT_OUT)
            )


_UNREADABLE = (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError, RecursionError)


def unpack(archive: Path, manifest: Manifest, folder: Path) -> None:
    """Unpack all of ``archive`` into ``folder``, which is empty. Raises Damaged for another archive
    than that of the manifest, and OSError. The caller removes what was written until then."""
    with open_regular(archive) as file:
        # Checked first, so that nothing of another archive is decompressed.
        if hashlib.file_digest(file, "sha256").hexdigest() != manifest.sha256:
            raise Damaged(f"{archive.name} does not match the sha256 in its manifest")
        file.seek(0)
        try:
            with tarfile.open(fileobj=file, mode="r:gz") as content:
                content.extractall(folder, filter="data")
        except _UNREADABLE as error:
            raise Damaged(f"{archive.name} cannot be read: {error}") from None


_NOT_COMPILED = re.compile(
    rf"{PREFIX}(HOST|PORT|UDS|ROOT_PATH|SSL_.*|ENABLE_SSL_REFRESH|ALLOW(ED)?_.*|MIDDLEWARE"
    r"|SERVED_MODEL_NAME|RESPONSE_ROLE|RETURN_TOKENS_AS_TOKEN_IDS|ENABLE_PROMPT_TOKENS_DETAILS"
    r"|ENABLE_(FORCE_INCLUDE_USAGE|PER_REQUEST_METRICS|SERVER_LOAD_TRACKING|REQUEST_ID_HEADERS)"
    r"|ENABLE_TOKENIZER_INFO_ENDPOINT|DISABLE_FASTAPI_DOCS|ENABLE_OFFLINE_DOCS|FINGERPRINT_.*"
    r"|(TRUST_REQUEST_|DEFAULT_)?CHAT_TEMPLATE(_CONTENT_FORMAT|_KWARGS)?|ENABLE_AUTO_TOOL_CHOICE"
    r"|EXCLUDE_TOOLS_WHEN_TOOL_CHOICE_NONE|TOOL_CALL_PARSER|TOOL_SERVER|REASONING_PARSER"
    r"|ENABLE_LOG_.*|ENABLE_LOGGING_ITERATION_DETAILS|AGGREGATE_ENGINE_LOGGING|DISABLE_LOG_.*"
    r"|DISABLE_(UVICORN_ACCESS_LOG|ACCESS_LOG_FOR_ENDPOINTS)|UVICORN_LOG_LEVEL|LOG_CONFIG_FILE"
    r"|LOG_ERROR_STACK|MAX_LOG_LEN|SHOW_HIDDEN_METRICS_FOR_VERSION|OTLP_TRACES_ENDPOINT"
    r"|COLLECT_DETAILED_TRACES|KV_CACHE_METRICS(_SAMPLE)?)"
    r"|VLLM_(HOST_IP|PORT|RPC_BASE_PATH|CACHE_ROOT|CONFIG_ROOT|ASSETS_CACHE(_MODEL_CLEAN)?"
    r"|DEBUG_DUMP_PATH|DEBUG_LOG_API_SERVER_RESPONSE|LOG_STATS_INTERVAL|LOGGING_.*|MEDIA_.*"
    r"|RINGBUFFER_WARNING_INTERVAL|DO_NOT_TRACK|NO_USAGE_STATS|USAGE_STATS_SERVER|SERVER_DEV_MODE"
    r"|SKIP_MODEL_NAME_VALIDATION|HTTP_TIMEOUT_KEEP_ALIVE|ENGINE_ITERATION_TIMEOUT_S"
    r"|EXECUTE_MODEL_TIMEOUT_SECONDS|WORKER_SHUTDOWN_TIMEOUT_SECONDS|KEEP_ALIVE_ON_ENGINE_DEATH"
    r"|(IMAGE|VIDEO|AUDIO)_FETCH_TIMEOUT|CPU_KVCACHE_SPACE)"
)
"""Arguments about the network, access, responses, chats and logs, and variables that vLLM excludes
from its cache keys (``envs.compile_factors``). Others that it excludes are missing here, because
they select a kernel or a model."""
_COMPILERS = ("TORCHINDUCTOR_", "TRITON_", "TORCH_", "PYTORCH_", "NVCC_")


def affects_compilation(name: str) -> bool:
    """Whether the variable may change what the engine compiles."""
    if not name.startswith((PREFIX, "VLLM_", *_COMPILERS)) or is_secret(name) or name in FOLDERS:
        return False
    return not _NOT_COMPILED.fullmatch(name.replace(NEGATION, PREFIX, 1))


QUANTIZATION = "hf_quant_config.json"
"""Some checkpoints describe their quantization in this file; vLLM reads it too."""


def make_subject(environment: Mapping[str, str], chosen: Mapping[str, str]) -> dict[str, Any]:
    """The subject of this container. ``environment`` is as the user set it, ``chosen`` has the
    model and its paths resolved. The subject holds no secret. Raises UnknownDevice."""
    installed, redactor = distributions(), Redactor(environment)
    software = "\n".join([*installed, platform.python_version(), os.uname().machine])
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    drafter, revision = drafter_model(chosen), read_speculative_config(chosen).get("revision")
    return {
        "format": ARTIFACT_FORMAT,
        "image": environment.get(IMAGE_CONTENT_VARIABLE)
        or environment.get(IMAGE_DIGEST_VARIABLE, ""),
        "software": hashlib.sha256(software.encode()).hexdigest(),
        "device": cpu_device() if is_for_cpu(installed) else gpu_device(visible),
        "engine": {
            name: redactor.text(environment[name])
            for name in sorted(filter(affects_compilation, environment))
        },
        "pair": {
            "target": _identity(chosen[MODEL], chosen.get(f"{PREFIX}REVISION")),
            "drafter": _identity(drafter, revision) if drafter else None,
        },
    }


def _identity(path: str, revision: object) -> str:
    """A model's digest of its config.json, or its revision on the Hub."""
    if not is_folder_path(path):
        return f"{path}@{revision or ''}"
    for name in CONFIGURATIONS:
        file, beside = Path(path) / name, Path(path) / QUANTIZATION
        if file.is_file():
            more = read_regular(beside) if beside.is_file() else b""
            return hashlib.sha256(read_regular(file) + more).hexdigest()
    return ""


_QUERY = ("nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader")
_QUERY_SECONDS = 60


def cpu_device(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, Any]:
    """The processor's name and a digest of its instruction sets, for which code is compiled. Raises
    UnknownDevice."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0]
    except OSError as error:
        raise UnknownDevice(str(error)) from None
    facts = dict(re.findall(r"^(.*?)[ \t]*:[ \t]*(.*)$", text, re.MULTILINE))
    flags = facts.get("flags") or facts.get("Features")  # the latter on Arm
    if not flags:
        raise UnknownDevice(f"{cpuinfo} does not list the processor's instruction sets")
    model = facts.get("model name") or facts.get("CPU part") or facts.get("Processor", "")
    digest = hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()
    return {"cpu": model, "instructions": digest}


def gpu_device(visible: str = "") -> dict[str, Any]:
    """The GPUs' names and compute capabilities, the number in use, and the driver's branch. Only
    the major version of the driver counts: compiled code runs on every driver of a branch, and CUDA
    separates its own caches by driver. ``visible`` is ``CUDA_VISIBLE_DEVICES``. Raises
    UnknownDevice."""
    try:
        done = subprocess.run(
            _QUERY, capture_output=True, text=True, check=False, timeout=_QUERY_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnknownDevice(f"nvidia-smi cannot be run: {error}") from None
    rows = [line.split(", ") for line in done.stdout.splitlines()]
    if done.returncode or not rows or any(len(row) != 3 for row in rows):
        output = (done.stderr or done.stdout).strip().partition("\n")[0]
        raise UnknownDevice(f"nvidia-smi reports no GPU: {output[:200]}")
    used = len(visible.split(",")) if visible else len(rows)
    names = [f"{name} ({capability})" for name, capability, _ in rows]
    return {"gpus": names, "used": used, "driver": rows[0][2].partition(".")[0]}


def device_text(device: Any) -> str:
    """GPUs or CPU as text; "" where unknown."""
    facts = device if isinstance(device, dict) else {}
    gpus = facts.get("gpus")
    if isinstance(gpus, list) and gpus:
        return f"{facts.get('used', len(gpus))} x {gpus[0]}, driver {facts.get('driver')}"
    return str(facts.get("cpu") or "")


_FOR_CPU = {"VLLM_USE_AOT_COMPILE": "0"}
"""On a CPU vLLM 0.28.0 saves compiled functions that it cannot load ("'function' object has no
attribute 'finalize_loading'"), because its loader expects those of another backend, and compiles
again. Without them torch's caches are used: 7 s instead of 29 s of compiling the tiny pair."""


def cache_folder(environment: Mapping[str, str]) -> Path:
    """The folder with a subfolder for every key, in the user's cache."""
    users = environment.get("XDG_CACHE_HOME") or f"{environment.get('HOME', '')}/.cache"
    return Path(environment.get(CACHE_VARIABLE) or f"{users}/peagle").absolute() / WARM_FOLDER


def cache_variables(folder: Path, environment: Mapping[str, str], for_cpu: bool) -> dict[str, str]:
    """The variables of the caches below ``folder``, except those that the user has set; those are
    neither collected nor restored."""
    variables = {name: str(folder / below) for name, below in FOLDERS.items()}
    variables |= _FOR_CPU if for_cpu else {}
    return {name: value for name, value in variables.items() if not environment.get(name)}


def prepare(
    environment: Mapping[str, str], chosen: Mapping[str, str], warm: str, log: Log
) -> dict[str, str]:
    """Restore an artifact, or collect a new one; the additional variables of the engine.
    ``environment`` is as the user set it, ``chosen`` has the model resolved. ``warm`` is ``auto``
    or ``collect``. A problem with artifacts is a warning, and the start is cold. Raises
    InvalidEnvironment if ``warm`` is ``collect`` and the caches cannot be collected."""
    if warm == COLLECT:
        return _collect(environment, chosen, log)
    try:
        return _restore_variables(environment, chosen, log)
    except OSError as error:
        fix = f"copy the artifact again, or set {CACHE_VARIABLE} to a folder with free space"
        place = error.filename or cache_folder(environment)
        _log_cold(log, f"{place}: {error.strerror} ({fix})")
    except (Damaged, UnknownDevice) as error:
        _log_cold(log, str(error))
    except Exception as error:  # a damaged artifact must never stop the engine
        _log_cold(log, f"{type(error).__name__}: {error}")
    return {}


def _log_cold(log: Log, reason: str, **fields: object) -> None:
    log.warning(
        f"no warm start, the engine compiles everything: {reason}",
        event="warm-start", restored=False, reason=reason, **fields,
    )  # fmt: skip


def _restore_variables(
    environment: Mapping[str, str], chosen: Mapping[str, str], log: Log
) -> dict[str, str]:
    """The variables of a restored artifact; empty without a matching one."""
    folder = artifact_folder(environment)
    if not folder.is_dir():
        raise Damaged(f"{WARM_FOLDER_VARIABLE} is {folder}, which does not exist")
    names = [name for name in names_in(folder) if name.endswith(MANIFEST_SUFFIX)]
    if not names:
        raise Damaged(f"{folder} holds no artifact")
    pins = read_pins(environment)
    if not pins:
        raise Damaged(
            f"an archive is code, and {WARM_PINS_VARIABLE} does not say which one to restore "
            "(deploy again: the plan then pins it)"
        )
    subject = make_subject(environment, chosen)
    key = compute_key(subject)
    if f"{key}{MANIFEST_SUFFIX}" not in names:
        _log_no_match(log, subject, folder, names)
        return {}
    manifest = read_manifest(folder / f"{key}{MANIFEST_SUFFIX}")
    if pins != {ANY} and manifest.sha256 not in pins:
        raise Damaged(
            f"the archive {key} has the SHA-256 {manifest.sha256}, which {WARM_PINS_VARIABLE} does "
            "not list (if `peagle warm` replaced it, deploy again)"
        )
    cache = cache_folder(environment)
    begin = time.monotonic()
    is_fresh = restore(manifest, folder, cache)
    fields = {
        "key": key,
        "files": manifest.files,
        "unpacked_bytes": manifest.unpacked_bytes,
        "seconds": round(time.monotonic() - begin, 2) if is_fresh else None,
        "seconds_cold": manifest.seconds_cold or None,
    }
    message = f"warm start: {restored_text(fields)}"
    log.info(message, event="warm-start", restored=True, **fields)
    return cache_variables(cache / key, environment, "cpu" in subject["device"])


def _log_no_match(log: Log, subject: Mapping[str, Any], folder: Path, names: Iterable[str]) -> None:
    """Write how the most similar artifact differs. Raises Damaged if none is readable."""
    compared: list[tuple[int, str, list[str]]] = []
    for name in names:
        with contextlib.suppress(Damaged, OSError):
            other = read_manifest(folder / name).subject
            apart = [part for part, value in subject.items() if other.get(part) != value]
            compared.append((len(apart), name.removesuffix(MANIFEST_SUFFIX), apart))
    if not compared:
        raise Damaged(f"{folder} holds no readable artifact")
    _, key, apart = min(compared)
    reason = f"no artifact in {folder} matches this container; {key} has another {', '.join(apart)}"
    _log_cold(log, reason, differences=apart)


def _collect(environment: Mapping[str, str], chosen: Mapping[str, str], log: Log) -> dict[str, str]:
    try:
        subject = make_subject(environment, chosen)
    except (UnknownDevice, OSError) as error:
        raise InvalidEnvironment(
            f"{WARM_MODE_VARIABLE} is {COLLECT}, but the device is unknown: {error}",
            "collect where the engine can run",
        ) from None
    cache = cache_folder(environment)
    place = cache / compute_key(subject)
    try:
        shutil.rmtree(place, ignore_errors=True)
        locate_archive(place).unlink(missing_ok=True)
        place.mkdir(parents=True)
    except OSError as error:
        raise InvalidEnvironment(
            f"{WARM_MODE_VARIABLE} is {COLLECT}, and {cache} is not writable: {error.strerror}",
            f"set {CACHE_VARIABLE} to a writable folder of this user",
        ) from None
    message = f"collecting compile caches for warm starts (key {place.name})"
    log.info(message, event="collect", key=place.name)
    return {
        **cache_variables(place, environment, "cpu" in subject["device"]),
        SUBJECT_VARIABLE: canonical(subject).decode(),
        COLLECT_FOLDER_VARIABLE: str(place),
    }


_PARTIAL = ".partial"
_MARK = "restored.json"


def restore(manifest: Manifest, artifacts: Path, cache: Path) -> bool:
    """Unpack the artifact to ``cache/<key>``. False if that was done before, also by another
    process at the same time. Raises Damaged, OSError; then nothing is left."""
    place, mark = cache / manifest.key, {"sha256": manifest.sha256}
    cache.mkdir(parents=True, exist_ok=True)
    lock = os.open(cache, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(OSError, InvalidJson):
            if read_file(place / _MARK) == mark:
                return False
        partial = cache / f"{manifest.key}{_PARTIAL}"
        shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
        try:
            partial.mkdir()
            unpack(artifacts / f"{manifest.key}{ARCHIVE_SUFFIX}", manifest, partial)
            (partial / _MARK).write_text(json.dumps(mark), encoding="ascii")
            shutil.rmtree(place, ignore_errors=True)  # of another archive, or incomplete
            partial.rename(place)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    finally:
        os.close(lock)
    return True
