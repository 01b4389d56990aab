"""Warm starts: compile caches of one engine, restored for the next identical one.

Most of a cold start is compilation. With ``PEAGLE_WARM=collect`` an engine compiles into empty
folders and offers them as an artifact (``warm_archive``) through ``/invocations``; artifacts are
stored in the folder ``warm/`` next to the weights.

The **subject** of an artifact is what compiled code depends on: the image, the installed software,
the device, the pair, and the engine's variables except those listed here, which change nothing
that is compiled. Unknown variables count: compiling once more is better than running code for
another configuration. Arguments that load the user's code (``--tool-parser-plugin``) count, and so
do those in vLLM's cache keys (``--generation-config``).

An artifact is unpacked into a temporary folder and renamed, so it is complete or absent. Meanwhile
the weights are read into the page cache.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from peagle_serve.checkpoint import CONFIGURATIONS, first_names, is_folder_path, names_in
from peagle_serve.contract import (
    ANY,
    ARCHIVE_SUFFIX,
    ARTIFACT_FORMAT,
    CACHE_VARIABLE,
    CAPTURE_VARIABLE,
    COLLECT,
    IMAGE_CONTENT_VARIABLE,
    IMAGE_DIGEST_VARIABLE,
    MANIFEST_SUFFIX,
    MODEL,
    PREFIX,
    SUBJECT_VARIABLE,
    WARM_FOLDER,
    WARM_FOLDER_VARIABLE,
    WARM_MODE_VARIABLE,
    WARM_PINS_VARIABLE,
    InvalidEnvironment,
    read_pins,
)
from peagle_serve.environment import NEGATION, distributions, is_for_cpu, read_speculative_config
from peagle_serve.json_reader import DEFAULT, InvalidJson, read_file, read_regular
from peagle_serve.logs import Log, Redactor, is_secret, restored_text
from peagle_serve.warm_archive import (
    FOLDERS,
    LARGER_DISK,
    Damaged,
    Manifest,
    archive_of,
    canonical,
    key_of,
    read_manifest,
    unpack,
)
from peagle_serve.weights import artifact_folder, drafter_model, models_in

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
"""Prefixes of the compilers' variables, which all count."""


def affects_compilation(name: str) -> bool:
    """Whether the variable may change what the engine compiles."""
    if not name.startswith((PREFIX, "VLLM_", *_COMPILERS)) or is_secret(name) or name in FOLDERS:
        return False
    return not _NOT_COMPILED.fullmatch(name.replace(NEGATION, PREFIX, 1))


QUANTIZATION = "hf_quant_config.json"
"""Some checkpoints describe their quantization in this file; vLLM reads it too."""


def subject_of(environment: Mapping[str, str], chosen: Mapping[str, str]) -> dict[str, Any]:
    """The subject of this container.

    ``environment`` is as the user set it, ``chosen`` has the model and its paths resolved. The
    subject holds no secret. Raises UnknownDevice.
    """
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
            more = read_regular(beside, DEFAULT.size) if beside.is_file() else b""
            return hashlib.sha256(read_regular(file, DEFAULT.size) + more).hexdigest()
    return ""


_QUERY = ("nvidia-smi", "--query-gpu=name,compute_cap,driver_version", "--format=csv,noheader")
_QUERY_SECONDS = 60
_CPU_MODEL = ("model name", "CPU part", "Processor")
_CPU_FLAGS = ("flags", "Features")


class UnknownDevice(Exception):
    """The device cannot be determined; the message says why."""


def cpu_device(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict[str, Any]:
    """The processor's name and a digest of its instruction sets, for which code is compiled.

    Raises UnknownDevice.
    """
    try:
        first = cpuinfo.read_text(encoding="utf-8", errors="replace").split("\n\n")[0]
    except OSError as error:
        raise UnknownDevice(str(error)) from None
    pairs = (line.partition(":") for line in first.splitlines())
    facts = {name.strip(): value.strip() for name, _, value in pairs}
    flags = next((facts[name] for name in _CPU_FLAGS if name in facts), "")
    if not flags:
        raise UnknownDevice(f"{cpuinfo} does not list the processor's instruction sets")
    model = next((facts[name] for name in _CPU_MODEL if name in facts), "")
    digest = hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()
    return {"cpu": model, "instructions": digest}


def gpu_device(visible: str = "") -> dict[str, Any]:
    """The GPUs' names and compute capabilities, the number in use, and the driver's branch.

    Only the major version of the driver counts: compiled code runs on every driver of a branch,
    and CUDA separates its own caches by driver. ``visible`` is ``CUDA_VISIBLE_DEVICES``. Raises
    UnknownDevice.
    """
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


_MOST_SHOWN = 12
"""Names of another subject in a message."""


def differences(subject: Mapping[str, Any], other: Any) -> list[str]:
    """How another subject differs from ``subject``, as short phrases."""
    if not isinstance(other, dict):
        return ["everything"]
    phrases = [f"the {part}" for part in ("image", "software") if subject[part] != other.get(part)]
    if "the image" in phrases and not (subject["image"] and other.get("image")):
        phrases[0] += " (a digest is unknown: name images as NAME@sha256:...)"
    if models := _changed(subject["pair"], other.get("pair")):
        phrases += [f"the {name[:_MOST_SHOWN]}" for name in models[:2]]
    if subject["device"] != other.get("device"):
        # CPUs of one name may differ in their instruction sets.
        there, here = (device_text(each.get("device"))[:80] for each in (other, subject))
        phrases.append(f"the device ({there}; here {here})")
    if names := _changed(subject["engine"], other.get("engine")):
        phrases.append(f"the engine's arguments ({first_names(names, _MOST_SHOWN)})")
    return phrases or ["the format"]


def _changed(ours: dict[str, Any], theirs: Any) -> list[str]:
    other = theirs if isinstance(theirs, dict) else {}
    return sorted(name for name in {*ours, *other} if ours.get(name) != other.get(name))


_USER = os.geteuid()
_SHARED = "/tmp"  # nosec B108 # a folder there must be this user's own
_PRIVATE = 0o700
_FOR_CPU = {"VLLM_USE_AOT_COMPILE": "0"}
"""On a CPU vLLM 0.28.0 saves compiled functions that it cannot load ("'function' object has no
attribute 'finalize_loading'"), because its loader expects those of another backend, and compiles
again. Without them torch's caches are used: 7 s instead of 29 s of compiling the tiny pair."""


def cache_folder(environment: Mapping[str, str]) -> Path:
    """The folder with a subfolder for every key; without a home, one of this user in ``/tmp``."""
    home, base = environment.get("HOME"), environment.get("XDG_CACHE_HOME")
    base = base or (f"{home}/.cache" if home else "")
    ours = f"{base}/peagle" if base else f"{environment.get('TMPDIR') or _SHARED}/peagle-{_USER}"
    return Path(environment.get(CACHE_VARIABLE) or ours).absolute() / WARM_FOLDER


def make_cache_folder(environment: Mapping[str, str]) -> Path:
    """The same folder, created if needed. The engine loads code from it, so it belongs to this user
    and no other user may write there; the folder that the user names is theirs to protect.

    Raises OSError, with that as its reason.
    """
    folder = cache_folder(environment)
    folder.parent.parent.mkdir(parents=True, exist_ok=True)
    for path in (folder.parent, folder):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=_PRIVATE)
        facts = path.lstat()
        if stat.S_ISREG(facts.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        is_private = facts.st_uid == _USER and not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        is_named = environment.get(CACHE_VARIABLE) and path == folder.parent
        if not (is_private or is_named):
            raise PermissionError(errno.EPERM, "other users may write there", str(path))
    return folder


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
    InvalidEnvironment if ``warm`` is ``collect`` and the caches cannot be collected.
    """
    if warm == COLLECT:
        return _collect(environment, chosen, log)
    try:
        return _restored(environment, chosen, log)
    except OSError as error:
        reason = _explanation(error, environment)
    except (Damaged, UnknownDevice) as error:
        reason = str(error)
    except Exception as error:  # a damaged artifact must never stop the engine
        reason = f"{type(error).__name__}: {error}"
    _log_cold(log, reason)
    return {}


def _log_cold(log: Log, reason: str, **fields: object) -> None:
    log.warning(
        f"no warm start, the engine compiles everything: {reason}",
        event="warm-start", restored=False, reason=reason, **fields,
    )  # fmt: skip


def _restored(
    environment: Mapping[str, str], chosen: Mapping[str, str], log: Log
) -> dict[str, str]:
    """The variables of a restored artifact; empty without a matching one."""
    folder = artifact_folder(environment)
    if not os.path.isdir(folder):
        raise Damaged(
            f"{WARM_FOLDER_VARIABLE} is {folder}, which does not exist "
            "(mount a folder there, or remove the variable)"
        )
    names = [name for name in names_in(folder) if name.endswith(MANIFEST_SUFFIX)]
    if not names:
        reason = f"{folder} holds no artifact"
        log.info(f"no warm start: {reason}", event="warm-start", restored=False, reason=reason)
        return {}
    pins = read_pins(environment)
    if not pins:
        raise Damaged(
            f"an archive is code, and {WARM_PINS_VARIABLE} does not say which one to restore "
            "(deploy again: the plan then pins it)"
        )
    subject = subject_of(environment, chosen)
    key = key_of(subject)
    if f"{key}{MANIFEST_SUFFIX}" not in names:
        _log_no_match(log, subject, folder, names)
        return {}
    manifest = read_manifest(folder / f"{key}{MANIFEST_SUFFIX}")
    if pins != {ANY} and manifest.sha256 not in pins:
        raise Damaged(
            f"the archive {key} has the SHA-256 {manifest.sha256}, which {WARM_PINS_VARIABLE} does "
            "not list (if `peagle warm` replaced it, deploy again)"
        )
    cache = make_cache_folder(environment)
    begin = time.monotonic()
    read_ahead(path for path in models_in(chosen).values() if is_folder_path(path))
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


def _explanation(error: OSError, environment: Mapping[str, str]) -> str:
    """What went wrong with a file of an artifact or of the cache, and the fix."""
    what, file = error.strerror or str(error), str(error.filename or "")
    if file.startswith(f"{artifact_folder(environment)}/"):
        return f"{file}: {what} (copy both files of the artifact again, or remove it)"
    cache = str(cache_folder(environment))
    if file and not (file.startswith(cache) or cache.startswith(file)):
        return f"{file}: {what} (make the file readable)"
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    fix = LARGER_DISK if is_full else f"set {CACHE_VARIABLE} to a writable folder of this user"
    return f"{file or cache}: {what} ({fix})"


_MOST_COMPARED = 100


def _log_no_match(log: Log, subject: Mapping[str, Any], folder: Path, names: Iterable[str]) -> None:
    """Write how the most similar artifact differs. Raises Damaged if none is readable."""
    compared: list[tuple[int, str, list[str]]] = []
    problems: list[str] = []
    for name in sorted(names)[:_MOST_COMPARED]:
        try:
            apart = differences(subject, read_manifest(folder / name).subject)
        except (Damaged, OSError) as error:
            problems.append(str(error))
        else:
            compared.append((len(apart), name.removesuffix(MANIFEST_SUFFIX), apart))
    if not compared:
        raise Damaged(f"{folder} holds no readable artifact: {problems[0]}")
    _, key, apart = min(compared)
    reason = f"no artifact in {folder} matches this container; {key} differs in {'; '.join(apart)}"
    _log_cold(log, reason, nearest=key, differences=apart)


def _collect(environment: Mapping[str, str], chosen: Mapping[str, str], log: Log) -> dict[str, str]:
    try:
        subject = subject_of(environment, chosen)
    except (UnknownDevice, OSError) as error:
        raise InvalidEnvironment(
            f"{WARM_MODE_VARIABLE} is {COLLECT}, but the device is unknown: {error}",
            "collect where the engine can run",
        ) from None
    cache = cache_folder(environment)
    place = cache / key_of(subject)
    try:
        make_cache_folder(environment)
        if place.exists():
            _remove(place)
        archive_of(place).unlink(missing_ok=True)
        place.mkdir()
    except OSError as error:
        raise InvalidEnvironment(
            f"{WARM_MODE_VARIABLE} is {COLLECT}, and {cache} is not writable: {error.strerror}",
            f"set {CACHE_VARIABLE} to a writable folder of this user",
        ) from None
    if elsewhere := sorted(filter(environment.get, FOLDERS)):
        log.warning(f"not collected, because their folders are set: {', '.join(elsewhere)}")
    if environment.get("VLLM_API_KEY") or environment.get(f"{PREFIX}API_KEY"):
        log.warning(
            "the API key is part of the keys of vLLM's caches: this artifact only helps engines "
            "with the same key"
        )
    message = f"collecting compile caches for warm starts (key {place.name})"
    log.info(message, event="collect", key=place.name)
    return {
        **cache_variables(place, environment, "cpu" in subject["device"]),
        SUBJECT_VARIABLE: canonical(subject).decode(),
        CAPTURE_VARIABLE: str(place),
    }


_PARTIAL = ".partial"
_MARK = "restored.json"
_ABANDONED_SECONDS = 3600.0
"""A partial folder of this age is abandoned."""
_TRIES = 3


def restore(manifest: Manifest, artifacts: Path, cache: Path) -> bool:
    """Unpack the artifact to ``cache/<key>``. False if that was done before, also by another
    process at the same time. Raises Damaged, OSError; then nothing is left."""
    place = cache / manifest.key
    if _is_restored(place, manifest):
        return False
    cache.mkdir(parents=True, exist_ok=True)
    with _temporary_folder(cache, manifest.key) as folder:
        free = shutil.disk_usage(cache).free
        if free < manifest.unpacked_bytes:
            needed = manifest.unpacked_bytes
            raise Damaged(
                f"{cache} has {free / 1e6:.1f} MB free, and {needed / 1e6:.1f} MB are needed "
                f"({LARGER_DISK})"
            )
        unpack(artifacts / f"{manifest.key}{ARCHIVE_SUFFIX}", manifest, folder)
        (folder / _MARK).write_text(json.dumps({"sha256": manifest.sha256}), encoding="ascii")
        for _ in range(_TRIES):
            try:
                os.rename(folder, place)
            except OSError as error:
                if not place.is_dir():
                    raise error from None
            else:
                return True
            if _is_restored(place, manifest):
                return False
            _remove(place)
    raise Damaged(f"{place} keeps being changed by other processes")


def _is_restored(place: Path, manifest: Manifest) -> bool:
    try:
        mark = read_file(place / _MARK)
    except (OSError, InvalidJson):
        return False
    return bool(mark == {"sha256": manifest.sha256})


@contextlib.contextmanager
def _temporary_folder(cache: Path, key: str) -> Iterator[Path]:
    """A new folder beside the folders of the keys, removed at the end unless it was renamed.
    Abandoned ones are removed too."""
    for left in cache.glob(f"*{_PARTIAL}"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(left)
    folder = Path(tempfile.mkdtemp(prefix=f"{key}.", suffix=_PARTIAL, dir=cache))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove(place: Path) -> None:
    """Remove a key's folder atomically. Raises OSError."""
    with (
        _temporary_folder(place.parent, place.name) as folder,
        contextlib.suppress(FileNotFoundError),
    ):
        os.rename(place, folder / place.name)


_STEP = 128 * 1024
"""Bytes per call: the kernel reads at most one read-ahead window for each."""


def read_ahead(folders: Iterable[str]) -> threading.Thread:
    """Start reading the weights in ``folders``, up to half of the free memory, in a thread that
    needs no join and may fail silently."""

    def read(paths: list[str], limit: int) -> None:
        for path in paths:
            with contextlib.suppress(OSError):
                for file in sorted(Path(path).glob("*.safetensors")):
                    with file.open("rb") as stream:
                        size = min(os.fstat(stream.fileno()).st_size, max(limit, 0))
                        limit -= size
                        for begin in range(0, size, _STEP):
                            advice = os.POSIX_FADV_WILLNEED
                            os.posix_fadvise(stream.fileno(), begin, _STEP, advice)

    thread = threading.Thread(target=read, args=(list(folders), _free_bytes() // 2), daemon=True)
    thread.start()
    return thread


def _free_bytes() -> int:
    """Available memory in bytes; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0
