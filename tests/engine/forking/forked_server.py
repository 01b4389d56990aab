"""vLLM's server, and the scripts of these tests that import vLLM, begin as forks of a process that
has imported it: 12 s of processor time less for each.

The first of them with an environment starts that process, and those with the same one share it;
they differ in their arguments, in their folders of modules, and in variables that nothing reads
while vLLM is imported. In place of the server's own process there is this one: it hands over its
arguments, environment and open files, passes on its signals, and ends as the server does. What it
cannot hand over starts as usual. The server is killed with it, and the process that has imported
vLLM ends with the tests, or when no server was asked for in ten minutes.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

MODULE = "vllm.entrypoints.openai.api_server"
ALSO = (
    "vllm.entrypoints.llm", "vllm.v1.worker.cpu_worker", "vllm.v1.worker.cpu_model_runner",
    "vllm.model_executor.models.llama_eagle3", "torch._inductor.compile_fx",
)  # fmt: skip
"""Modules that vLLM imports only when an engine starts, for every engine again."""
FOLDER = Path(__file__).parent
OWNER = FOLDER / "owner"
"""Has the number of the process of the tests."""
UNREAD = (
    "SM_VLLM_", "PEAGLE_", "SAGEMAKER_", "AWS_", "RUNAI_", "PROCESS_AUTO_RECOVERY",
    "VLLM_ADDITIONAL_ARGS", "VLLM_API_KEY", "VLLM_ASSETS_CACHE", "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_LOG_STATS_INTERVAL", "VLLM_NO_USAGE_STATS",
    "VLLM_USE_AOT_COMPILE", "HF_HUB_CACHE", "PATH", "PYTHONPATH", "PWD", "OLDPWD", "SHLVL", "_",
)  # fmt: skip
"""Beginnings of the variables that nothing reads while vLLM is imported; HF_HUB_CACHE is set again
in each fork."""
UNREAD_FOLDERS = ("_CACHE_DIR", "_CACHE_HOME", "_CACHE_PATH", "_CACHE_ROOT", "_WORKSPACE_BASE")
"""Endings of the variables of folders for compiled code, which are read when something compiles."""
OPTIONAL = {
    "runai_model_streamer": (
        "vllm.transformers_utils.runai_utils", "vllm.model_executor.model_loader.weight_utils",
    ),
}  # fmt: skip
"""Packages that vLLM imports wherever it finds them, and its modules that do so."""
PASSED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_BEGUN = b"begun\n"
_IDLE_SECONDS = 600.0
_END_SECONDS = 1.5
"""What a process that has imported vLLM takes to end after an error. Who reads its log knows the
reason by then; a fork ends at once."""
_FIRST_FREE = 500
"""A descriptor above those that a process inherits."""


def run() -> None:
    """Be the server that this process's arguments start; return where that is not possible."""
    if not OWNER.exists():
        return
    with contextlib.suppress(OSError):
        connection = _connection()
        if _is_handed_over(connection):
            _stand_for(connection)


def _connection() -> socket.socket:
    """To the process that has imported vLLM in this environment; it is started if there is none."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not (name.startswith(UNREAD) or name.endswith(UNREAD_FOLDERS))
    }
    environment["PYTHONPATH"] = str(FOLDER)
    text = json.dumps([sys.executable, sorted(environment.items())])
    place = FOLDER / f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.socket"
    connection = socket.socket(socket.AF_UNIX)
    with open(f"{place}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            connection.connect(str(place))
        except OSError:
            _start(place, environment)
            connection.connect(str(place))
    return connection


def _start(place: Path, environment: dict[str, str]) -> None:
    place.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen(64)
        os.set_inheritable(listener.fileno(), True)
        program = f"import forked_server; forked_server.serve({listener.fileno()})"
        null, log = os.devnull, f"{place}.log"
        os.posix_spawn(
            sys.executable, [sys.executable, "-c", program], environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, null, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )  # fmt: skip


def _is_handed_over(connection: socket.socket) -> bool:
    """Hand over what makes this process; whether the server has begun."""
    files = [int(name) for name in os.listdir("/proc/self/fd")]
    files = [
        descriptor
        for descriptor in files
        if descriptor != connection.fileno() and _is_open(descriptor)
    ]
    words = sys.orig_argv
    at = words.index(MODULE) if MODULE in words[1:4] else 1
    umask = os.umask(0)
    os.umask(umask)
    request = {"argv": words[at:], "environment": dict(os.environ), "files": files,
               "folder": os.getcwd(), "umask": umask, "path": sys.path}  # fmt: skip
    body = json.dumps(request).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
    connection.sendmsg([len(body).to_bytes(4, "big")], rights)
    connection.sendall(body)
    return connection.recv(len(_BEGUN)) == _BEGUN


def _stand_for(connection: socket.socket) -> NoReturn:
    """Pass on signals to the server, and end as it ends."""

    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(OSError):  # it has ended
            connection.send(bytes([number]))

    for number in PASSED:
        signal.signal(number, pass_on)
    os.closerange(0, connection.fileno())
    os.closerange(connection.fileno() + 1, _FIRST_FREE)
    try:
        code = int(connection.recv(16) or b"1")
    except OSError:
        code = 1
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    if code:
        time.sleep(_END_SECONDS)
    os._exit(code & 0xFF)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def serve(listener: int) -> None:
    """Import vLLM, and fork for every request until the tests end, or none comes any more."""
    import gc

    for module in (MODULE, *ALSO):
        importlib.import_module(module)
    assert threading.active_count() == 1, threading.enumerate()
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    with socket.socket(fileno=listener) as listening:
        last = time.monotonic()
        while _tests_run() and time.monotonic() < last + _IDLE_SECONDS:
            if not select.select([listening], [], [], 1)[0]:
                continue
            connection, _ = listening.accept()
            last = time.monotonic()
            if os.fork() == 0:
                listening.close()
                _keep(connection)
                os._exit(0)
            connection.close()
    os._exit(0)


def _tests_run() -> bool:
    try:
        os.kill(int(OWNER.read_text()), 0)
    except (OSError, ValueError):
        return False
    return True


def _keep(connection: socket.socket) -> None:
    """Fork the server that is asked for, and stand between it and the process that asked."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, ancillary, _, _ = connection.recvmsg(4, socket.CMSG_SPACE(4 * 256))
    descriptors = array.array("i")
    for _, _, data in ancillary:
        descriptors.frombytes(data)
    body = connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
    request = json.loads(body)
    if (server := os.fork()) == 0:
        os.setsid()
        connection = _moved(connection)
        connection.send(_BEGUN)
        connection.close()
        _become(request, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    ended = os.pidfd_open(server)
    waited: list[Any] = [connection, ended]
    while ended not in select.select(waited, [], [])[0]:
        numbers = connection.recv(16)
        for number in numbers:
            os.kill(server, number)
        if not numbers:  # the process in its place was killed
            break
    # With the server end its own processes, which are not in the session of the one in its place.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(server, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(server, 0)[1])
    with contextlib.suppress(OSError):
        connection.send(str(status).encode())


def _moved(connection: socket.socket) -> socket.socket:
    """The same connection, with a descriptor that the server's files do not have."""
    moved = fcntl.fcntl(connection.detach(), fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE)
    return socket.socket(fileno=moved)


def _become(request: dict[str, Any], descriptors: array.array[int]) -> NoReturn:
    """Run the server or the script with the files, environment, folders of modules and arguments of
    the process that asked, and end as it ends: with SystemExit, or with the traceback of an
    error."""
    import random
    import runpy
    import warnings

    high = [fcntl.fcntl(passed, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for passed in descriptors]
    os.closerange(0, _FIRST_FREE)
    for descriptor, passed in zip(request["files"], high, strict=True):
        os.dup2(passed, descriptor)
    os.closerange(_FIRST_FREE, 2 * _FIRST_FREE)
    os.umask(request["umask"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    program = request["argv"][0]
    sys.path[:] = request["path"]
    if not sys.flags.safe_path:
        sys.path.insert(0, request["folder"] if program == MODULE else str(Path(program).parent))
    sys.argv = request["argv"]
    random.seed()
    _import_again()
    if program == MODULE:
        warnings.filterwarnings("ignore", message=f".*{MODULE}.* found in sys.modules")
        runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(program, run_name="__main__")
    sys.exit()


def _import_again() -> None:
    """What depends on the folders of modules and on the environment of this fork."""
    from huggingface_hub import constants

    constants.HF_HUB_CACHE = os.environ.get("HF_HUB_CACHE", constants.HF_HUB_CACHE)
    for package, modules in OPTIONAL.items():
        if importlib.util.find_spec(package):
            for module in modules:
                importlib.reload(sys.modules[module])
