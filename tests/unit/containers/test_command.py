"""The entrypoint as SageMaker runs it: a process with an environment, and vLLM's resulting call."""

import ast
import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from peagle_serve.command import command
from tests.unit.checks.damage import tiny
from tests.unit.containers.recording import SERVE, Container, container_in, documents


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Container:
    return container_in(tmp_path_factory.mktemp("container"))


def cpu_seconds() -> float:
    """The CPU time of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.thorough
def test_vllm_serve_starts_where_the_module_is_deprecated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in vLLM 0.29.0 and later; the module also runs where no script `vllm` is installed."""
    server = tmp_path / "vllm" / "entrypoints" / "openai" / "api_server.py"
    server.parent.mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").touch()
    server.write_text('"The `python -m vllm.entrypoints.openai.api_server` command is deprecated"')
    monkeypatch.syspath_prepend(tmp_path)
    argv = command({"SM_VLLM_MODEL": "a/b", "SM_VLLM_SEED": "1"})
    assert argv[1:7] == ["-m", "vllm.entrypoints.cli.main", "serve", "a/b", "--port", "8080"]
    assert argv[argv.index("--seed") + 1] == "1"
    assert "--model" not in argv


def test_the_middleware_is_importable_and_the_working_folder_is_not(container: Container) -> None:
    container.argv({"SM_VLLM_MODEL": "a/b"})
    path = json.loads(container.record.read_text())["path"]
    assert path[0] == str(SERVE.parent)
    assert path[1] == str(container.folder)
    assert "" not in path


@pytest.mark.thorough
@pytest.mark.parametrize("language", ["C", "en_US.ISO-8859-1", "de_DE.UTF-8"])
def test_special_characters_pass_in_any_locale(container: Container, language: str) -> None:
    value = "50 % \"quoted\" 'single' $HOME `x` \\ \n zwei\t\u00e4\u65e5\U0001f600"
    argv = container.argv({"SM_VLLM_MODEL": "a/b", "SM_VLLM_X": value, "LC_ALL": language})
    assert argv[argv.index("--x") + 1] == value


@pytest.mark.thorough
@pytest.mark.parametrize(("variables", "line"), [
    ({}, "no model is set"),
    ({"SM_VLLM_MODEL": "a/b", "SM_VLLM_SPECULATIVE_CONFIG": "{"}, "is not valid JSON"),
    ({"SM_VLLM_MODEL": "a/b", "SPECULATIVE_CONFIG": "{}"}, "SM_VLLM_SPECULATIVE_CONFIG"),
    ({"SM_VLLM_MODEL": "/opt/ml/model/gone"}, "which cannot be read"),
])  # fmt: skip
def test_an_invalid_environment_ends_the_container_with_one_line(
    container: Container, variables: dict[str, str], line: str
) -> None:
    before = cpu_seconds()
    done = container.run({**variables, "PEAGLE_ML_ROOT": "/nowhere"})
    assert done.returncode == 2
    assert cpu_seconds() - before < 1, "vLLM's imports take ten times as long"
    (reported,) = documents(done)
    assert (reported["level"], reported["stage"], reported["exit_code"]) == ("ERROR", "checking", 2)
    assert line in f"{reported['message']} ({reported['fix']})"
    assert reported["fix"]
    assert not container.record.exists()


@pytest.mark.thorough
def test_a_missing_vllm_is_refused(tmp_path: Path) -> None:
    done = Container(tmp_path).run({"SM_VLLM_MODEL": "a/b"})
    assert done.returncode == 2
    assert b"has no vLLM" in done.stderr


@pytest.mark.thorough
def test_the_log_shows_the_arguments_but_no_secret(container: Container) -> None:
    token = "hf_" + "a1B2c3D4" * 4
    variables = {
        "SM_VLLM_MODEL": "a/b", "SM_VLLM_API_KEY": "first-key", "SM_VLLM_HF_TOKEN": token,
        "SM_VLLM_MAX_NUM_BATCHED_TOKENS": "2048", "SM_VLLM_NOTE": f"not a place for {token}",
        "HF_TOKEN": token,
    }  # fmt: skip
    done = container.run(variables)
    log = done.stderr.decode()
    assert '"--max-num-batched-tokens", "2048"' in log
    for secret in (token, "first-key"):
        assert secret not in log
    recorded = json.loads(container.record.read_text())
    assert recorded["environment"]["HF_TOKEN"] == token


@pytest.mark.thorough
def test_secrets_reach_vllm_in_its_environment_and_never_as_arguments(container: Container) -> None:
    variables = {"SM_VLLM_API_KEY": '["-a key"]', "SM_VLLM_HF_TOKEN": "hf-of-ours"}
    container.run({"SM_VLLM_MODEL": "a/b", "VLLM_API_KEY": "another", **variables})
    recorded = json.loads(container.record.read_text())
    environment = recorded["environment"]
    assert (environment["VLLM_API_KEY"], environment["HF_TOKEN"]) == ("-a key", "hf-of-ours")
    assert not variables.keys() & environment.keys()
    assert "key" not in " ".join(recorded["argv"])
    assert "hf-of-ours" not in recorded["argv"]


@pytest.mark.thorough
def test_an_unknown_error_is_one_line_without_its_text(container: Container) -> None:
    """``vllm`` is a module that fails to be found, with an error that holds a secret."""
    broken = container.folder / "sitecustomize.py"
    broken.write_text(
        "import importlib.util as util\n"
        "found = util.find_spec\n"
        "def find_spec(name, package=None):\n"
        "    return found(name, package) if name != 'vllm' else {}['a secret']\n"
        "util.find_spec = find_spec\n"
    )
    try:
        done = container.run({"SM_VLLM_MODEL": "a/b"})
    finally:
        broken.unlink()
    assert done.returncode == 70
    (reported,) = documents(done)
    assert (reported["event"], reported["exit_code"]) == ("crash", 70)
    assert "KeyError at __main__.py" in reported["message"]
    assert reported["fix"]
    assert b"secret" not in done.stderr


@pytest.mark.thorough
def test_vllm_finds_a_vocabulary_beside_the_weights(container: Container, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((tiny("target") / name).read_bytes())
    (tmp_path / "o200k_base.tiktoken").write_bytes(b"aGVsbG8= 0")
    done = container.run({"SM_VLLM_MODEL": str(tmp_path)})
    assert container.record.exists(), done.stderr.decode()
    environment = json.loads(container.record.read_text())["environment"]
    assert environment["TIKTOKEN_ENCODINGS_BASE"] == str(tmp_path)


@pytest.mark.parametrize("file", sorted(SERVE.rglob("*.py")), ids=lambda file: file.name)
def test_it_needs_python_3_10_and_the_standard_library_only(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 10))
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else alias.name) or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    outside = {
        name
        for name in imported
        if name.partition(".")[0] not in {*sys.stdlib_module_names, "peagle_serve"}
    }
    assert outside == set()


SIGNAL_WHILE_IMPORTING = """
import os, runpy, signal, sys
class Slow:
    def find_spec(self, name, path, target=None):
        if name == "peagle_serve.command":
            os.kill(os.getpid(), signal.SIGTERM)
            raise AssertionError("the signal had no effect")
sys.meta_path.insert(0, Slow())
sys.path.insert(0, sys.argv[1])
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_a_signal_before_anything_is_imported_ends_it_with_0() -> None:
    command = [sys.executable, "-c", SIGNAL_WHILE_IMPORTING, str(SERVE)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
