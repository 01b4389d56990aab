"""``peagle catalog list | show | check``, as a user types them."""

import shutil
from pathlib import Path

import pytest

from peagle.catalog import load_catalog
from peagle.data import data_folder
from tests.support import in_process
from tests.unit.aws.cloud import service_error
from tests.unit.catalog.catalog_files import GOOD, write_target
from tests.unit.checks.damage import tiny
from tests.unit.cli.commands import Terminal


@pytest.mark.thorough
def test_check_is_content_with_what_ships() -> None:
    done = in_process("catalog", "check")
    assert (done.code, done.out, "problems: 0" in done.err) == (0, "", True)


def test_check_takes_several_files_and_folders(tmp_path: Path) -> None:
    wrong = write_target(tmp_path, GOOD.replace("k_trained: 8", "k_trained: ten"))
    good = write_target(tmp_path / "second", GOOD)
    checked = in_process("catalog", "check", str(good), str(wrong), str(wrong))
    assert checked.code == 2
    assert "files checked: 2, problems: 1" in checked.err
    (problem,) = checked.out.splitlines()
    assert "chat-7b.yaml:29: drafters[0].k_trained" in problem


def test_check_names_a_folder_without_catalogue_files(tmp_path: Path) -> None:
    done = in_process("catalog", "check", str(tmp_path), "--json")
    (problem,) = done.document["problems"]
    assert (done.code, problem["file"]) == (2, str(tmp_path))


def test_a_wrong_own_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    write_target(tmp_path, GOOD.replace("k_trained: 8", "k_trained: ten"))
    wrong = in_process("--catalog", str(tmp_path), "catalog", "show", "tiny", "--json")
    assert (wrong.code, wrong.refusal["code"]) == (2, "catalog")
    assert "chat-7b.yaml:29: drafters[0].k_trained" in wrong.refusal["message"]


# ``peagle catalog refresh``: shows changes, asks, and writes all or nothing.
PRICES = ("catalog", "refresh", "--prices", "--to")


@pytest.fixture
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has a table of its own already."""
    folder = tmp_path_factory.mktemp("mine")
    shutil.copy(data_folder("model_catalog") / "instances.yaml", folder)
    return folder


def price_in(folder: Path) -> float:
    """USD per hour of ml.g5.xlarge in us-east-1."""
    (instance,) = (i for i in load_catalog(folder).instances.instances if i.type == "ml.g5.xlarge")
    return instance.prices[0].usd_per_hour


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "answers", "code"), [((), "n\n", 0), (("--dry-run",), None, 0), ((), None, 2)]
)
def test_nothing_is_written_without_confirmation(
    terminal: Terminal, mine: Path, options: tuple[str, ...], answers: str | None, code: int
) -> None:
    terminal.cloud.price = 1.75
    before = (mine / "instances.yaml").read_bytes()
    done = terminal.run(*PRICES, str(mine), *options, answers=answers)
    assert done.code == code
    assert "$1.75" in done.out
    assert (mine / "instances.yaml").read_bytes() == before
    assert [path.name for path in mine.iterdir()] == ["instances.yaml"]


@pytest.mark.thorough
def test_json_is_one_document_and_writes_only_with_yes(terminal: Terminal, mine: Path) -> None:
    terminal.cloud.price = 1.75
    shown = terminal.run(*PRICES, str(mine), "--json").document
    assert shown["written"] == []
    assert price_in(mine) == 1.408
    done = terminal.run(*PRICES, str(mine), "--json", "--yes").document
    assert done["written"] == [str(mine / "prices.yaml")]
    (change,) = done["changes"]
    assert (change["entry"], change["before"]) == ("ml.g5.xlarge", "$1.408 (2026-07-01)")
    assert price_in(mine) == 1.75


@pytest.mark.thorough
def test_digests_of_images_come_from_ecr(terminal: Terminal, mine: Path) -> None:
    shutil.copy(data_folder("model_catalog") / "runtimes.yaml", mine)
    runtime = next(r for r in load_catalog().runtimes.runtimes if r.vllm == "0.28.0")
    digests = ("sha256:" + "a" * 64, "sha256:" + "b" * 64)
    for digest in digests:
        terminal.cloud.digests = {runtime.tag: digest}
        done = terminal.succeeds("catalog", "refresh", "--digests", "--to", str(mine), "--yes")
        assert digest in done.out
        runtimes = load_catalog(mine).runtimes.runtimes
        by_vllm = {runtime.vllm: runtime.digest for runtime in runtimes}
        assert by_vllm["0.28.0"] == digest
    assert by_vllm["0.25.0"] is None
    assert "reports no digest of vLLM 0.19.0, " in done.err
    made = terminal.run("--catalog", str(mine), "catalog", "refresh", "--digests", "--dry-run")
    assert "up to date" in made.err


def refuse(terminal: Terminal, *operations: str) -> None:
    def deny(operation: str) -> None:
        if operation in operations:
            raise service_error("AccessDeniedException", "no", operation)

    terminal.cloud.before = deny


@pytest.mark.thorough
def test_what_could_be_had_is_written_and_rest_is_a_failure(terminal: Terminal, mine: Path) -> None:
    terminal.cloud.price = 1.75
    refuse(terminal, "batch_get_image")
    done = terminal.run(*PRICES, str(mine), "--digests", "--yes")
    assert done.code == 4
    assert price_in(mine) == 1.75
    assert "digests: not refreshed: access denied: ecr:" in done.err
    assert "up to date" not in done.err
    assert f"wrote {mine / 'prices.yaml'}" in done.err


# ``peagle catalog check`` reads the weights that lie beside a catalogue's files.
@pytest.fixture
def wide_catalog(tmp_path: Path) -> Path:
    """A catalogue with one target of its own, whose file says another width than its weights."""
    text = (tiny("target").parents[1] / "tiny.yaml").read_text()
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme" / "tiny").symlink_to(tiny("target").parent)
    text = text.replace("id: peagle/tiny", "id: acme/mine").replace(
        "short_name: tiny", "short_name: mine"
    )
    (tmp_path / "acme" / "mine.yaml").write_text(
        text.replace("hidden_size: 256", "hidden_size: 512")
    )
    return tmp_path


def test_weights_that_are_not_there_are_wrong(wide_catalog: Path) -> None:
    (wide_catalog / "acme" / "tiny").unlink()
    done = in_process("--catalog", str(wide_catalog), "catalog", "check")
    assert (done.code, "is neither an id nor a folder" in done.out) == (2, True)
