"""What tests share: ``peagle`` in this process and as a process, errors by code, catalogues."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis
import pytest

from peagle.catalog.evidence import Speeds
from peagle.catalog.schema import Catalog
from peagle.cli.main import main
from peagle.data import BUNDLED_CATALOG, data_folder
from peagle.errors import PeagleError
from peagle.planning import Options, Plan

Peagle = Callable[..., subprocess.CompletedProcess[str]]
"""Runs ``peagle`` with these arguments; ``env``, ``cwd`` and ``input`` as of ``subprocess.run``."""
FROZEN_CATALOG = Path(__file__).parent / "catalog"
"""The catalogue that tests read."""
REFRESHED = ("instances.yaml", "runtimes.yaml")
"""The files of a catalogue that `peagle catalog refresh` writes: prices, instances and images."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """What ``--json`` printed."""
        return json.loads(self.out)

    @property
    def refusal(self) -> Any:
        """The error that ended a command with ``--json``."""
        return json.loads(self.err.splitlines()[-1])["error"]

    @property
    def error(self) -> str:
        """The last line on stderr, which must be the only error."""
        lines = self.err.splitlines()
        assert sum(line.startswith("error:") for line in lines) <= 1
        return lines[-1] if lines else ""


def in_process(
    *arguments: str,
    stdin: bytes = b"",
    terminal: bool = False,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Done:
    """Run ``peagle`` with these arguments in this process; it ends as the program would.

    ``stdin`` comes from a pipe, or with ``terminal`` from a terminal. ``environment`` replaces the
    whole environment, ``folder`` the working folder. Streams, argv, environment, folder and signal
    handlers are as before afterwards. What the program would end of with a traceback is raised.
    """
    typed = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8")
    typed.isatty = lambda: terminal  # type: ignore[method-assign]
    variables = os.environ if environment is None else environment
    encoding = variables.get("PYTHONIOENCODING", "utf-8")
    out, err = _stream(encoding), _stream(encoding)
    with _as_program(["peagle", *arguments], (typed, out, err), environment, folder):
        try:
            main()
        except SystemExit as ended:
            code = _exit_code(ended)
    return Done(code, _written(out), _written(err))


def run_in_process(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    input: str = "",
    **_: object,
) -> subprocess.CompletedProcess[str]:
    """``in_process`` with the arguments and the result of ``subprocess.run``."""
    folder = Path(cwd) if cwd else None
    done = in_process(*arguments, stdin=input.encode(), environment=env, folder=folder)
    return subprocess.CompletedProcess(["peagle", *arguments], done.code, done.out, done.err)


def run_as_process(*arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """``peagle`` as a process; keywords go to ``subprocess.run``."""
    command = [sys.executable, "-m", "peagle.cli", *arguments]
    # Python's view of the environment: a library that pytest loads puts COLUMNS beside it.
    options: dict[str, object] = {"env": dict(os.environ), "capture_output": True, "text": True,
                                  "timeout": 300}  # fmt: skip
    return subprocess.run(command, check=False, **{**options, **settings})  # type: ignore[call-overload,no-any-return]


@contextmanager
def _as_program(
    argv: list[str],
    streams: tuple[io.TextIOWrapper, io.TextIOWrapper, io.TextIOWrapper],
    environment: Mapping[str, str] | None,
    folder: Path | None,
) -> Iterator[None]:
    """This process as a program that was just started; all is put back at the end."""
    before = (sys.argv, sys.stdin, sys.stdout, sys.stderr)
    variables, place = dict(os.environ), Path.cwd()
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        sys.argv, (sys.stdin, sys.stdout, sys.stderr) = argv, streams
        if environment is not None:
            _set_environment(environment)
        os.chdir(folder or place)
        yield
    finally:
        sys.argv, sys.stdin, sys.stdout, sys.stderr = before
        _set_environment(variables)
        os.chdir(place)
        for number, handler in handlers.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _set_environment(variables: Mapping[str, str]) -> None:
    if os.environ != variables:
        os.environ.clear()
        os.environ.update(variables)


def _exit_code(ended: SystemExit) -> int:
    """The exit code that Python gives a program that ends like this."""
    if ended.code is None:
        return 0
    return ended.code if isinstance(ended.code, int) else 1


def _stream(encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    content: bytes = stream.buffer.getvalue()  # type: ignore[attr-defined]
    return content.decode(stream.encoding).replace("\r\n", "\n")


def once_per_options(
    make_plan: Callable[[Options, Catalog], Plan], folder: Path
) -> Callable[[Options, Catalog], Plan]:
    """``make_plan``, which returns what it has made for the same options with the catalogue in
    ``folder``. Nothing is kept for other catalogues, nor for a head that was read."""
    made: dict[tuple[object, ...], tuple[Catalog, Plan]] = {}

    def plan(options: Options, catalog: Catalog) -> Plan:
        is_own = not isinstance(catalog.speeds, Speeds) or catalog.speeds._user_folder
        frozen = os.environ.get(BUNDLED_CATALOG) == str(folder)
        if is_own or not frozen or options.drafter_checkpoint is not None:
            return make_plan(options, catalog)
        tables = (catalog.runtimes, catalog.instances, catalog.speed_model, catalog.version_rules)
        # A kept catalogue keeps the numbers of its tables and targets.
        key = (*map(id, (*tables, *catalog.targets.values())), repr(options))
        if key not in made:
            made[key] = (catalog, make_plan(options, catalog))
        return made[key][1]

    return plan


def examples(number: int) -> int:
    """``number`` scaled by the active profile of hypothesis: 100 % in ``make test-all``, less in
    ``make test`` and ``make unit`` (see conftest.py)."""
    usual = hypothesis.settings.default
    assert usual is not None
    return number * usual.max_examples // 100


@contextmanager
def raises_code(
    code: str, cls: type[PeagleError] = PeagleError
) -> Iterator[pytest.ExceptionInfo[PeagleError]]:
    """The block raises a ``cls`` with this ``code``, as programs tell errors apart."""
    with pytest.raises(cls) as raised:
        yield raised
    assert raised.value.code == code, raised.value


@contextmanager
def bundled_catalog() -> Iterator[None]:
    """The catalogue that ships, instead of the frozen one of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(BUNDLED_CATALOG)
        yield


@contextmanager
def bundled_evidence() -> Iterator[None]:
    """The targets and measurements that ship, with the prices, instances and images of the frozen
    catalogue: `peagle catalog refresh` changes no result."""
    with bundled_catalog():
        bundled = data_folder("model_catalog")
    with TemporaryDirectory() as parent, pytest.MonkeyPatch.context() as patch:
        folder = Path(parent) / "model_catalog"
        others = shutil.ignore_patterns(*REFRESHED)
        shutil.copytree(bundled, folder, copy_function=os.symlink, ignore=others)
        for name in REFRESHED:
            (folder / name).symlink_to(FROZEN_CATALOG / name)
        patch.setenv(BUNDLED_CATALOG, str(folder))
        yield


def rejected_values(plan: Plan) -> list[str]:
    """What AWS would reject in the requests of ``plan``, with an example's role and bucket."""
    from peagle.planning.plan import EXECUTION_ROLE, MODEL_BUCKET
    from peagle.render.requests import requests, with_replaced
    from peagle.request_validation import validate
    from peagle.sandbox.account import quota_codes

    examples = {EXECUTION_ROLE: "arn:aws:iam::123456789012:role/peagle", MODEL_BUCKET: "b" * 63}
    return [
        problem
        for request in requests(plan)
        for problem in validate(
            request.service,
            request.operation,
            with_replaced(request.parameters, examples),
            tuple(quota_codes()),
        )
    ]


def decide_alike(first: Plan, second: Plan) -> bool:
    """Whether two plans differ in nothing but the options that asked for them."""
    return first.model_copy(update={"options": second.options}) == second


def with_keys(folder: Path, words: Sequence[str], **keys: Any) -> tuple[str, ...]:
    """The command ``words`` (name, pair, options) with these keys of a new ``peagle.yaml``."""
    command, pair, *options = words
    file = folder / "peagle.yaml"
    file.write_text(json.dumps({"endpoints": {pair: {"pair": pair, **keys}}}), "utf-8")
    return (command, pair, "--project", str(file), *options)
