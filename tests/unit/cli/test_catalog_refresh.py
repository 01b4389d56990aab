"""``peagle catalog refresh``: shows, asks, writes all or nothing, and never by itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.aws.cloud import service_error
from tests.unit.cli.commands import Terminal
from toolkit.catalog import load_catalog
from toolkit.data import data_folder

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


def test_what_would_change_is_shown_and_asked(terminal: Terminal, mine: Path) -> None:
    terminal.cloud.price = 1.75

    done = terminal.run(*PRICES, str(mine), answers="y\n")

    assert done.code == 0
    assert "ml.g5.xlarge  price in us-east-1  $1.408 (2026-07-01) -> $1.75 (" in done.out
    assert f"wrote {mine / 'instances.yaml'}" in done.err
    assert price_in(mine) == 1.75


@pytest.mark.parametrize(
    ("options", "answers", "code"), [((), "n\n", 0), (("--dry-run",), None, 0), ((), None, 2)]
)
def test_nothing_is_written_unasked(
    terminal: Terminal, mine: Path, options: tuple[str, ...], answers: str | None, code: int
) -> None:
    terminal.cloud.price = 1.75
    before = (mine / "instances.yaml").read_bytes()

    done = terminal.run(*PRICES, str(mine), *options, answers=answers)

    assert done.code == code
    assert "$1.75" in done.out
    assert (mine / "instances.yaml").read_bytes() == before
    assert [path.name for path in mine.iterdir()] == ["instances.yaml"]


def test_json_is_one_document_and_writes_only_with_yes(terminal: Terminal, mine: Path) -> None:
    terminal.cloud.price = 1.75

    shown = terminal.run(*PRICES, str(mine), "--json").document
    assert shown["written"] == []
    assert price_in(mine) == 1.408
    done = terminal.run(*PRICES, str(mine), "--json", "--yes").document

    assert done["written"] == [str(mine / "instances.yaml")]
    (change,) = done["changes"]
    assert (change["entry"], change["before"]) == ("ml.g5.xlarge", "$1.408 (2026-07-01)")
    assert price_in(mine) == 1.75


def test_a_second_refresh_has_nothing_to_write(terminal: Terminal, mine: Path) -> None:
    terminal.cloud.price = 1.75
    terminal.run(*PRICES, str(mine), "--yes")
    before = (mine / "instances.yaml").read_bytes()

    done = terminal.run(*PRICES, str(mine))

    assert done.code == 0
    assert "up to date" in done.err
    assert (mine / "instances.yaml").read_bytes() == before


def test_a_new_folder_gets_only_what_changed_and_is_used(
    terminal: Terminal, tmp_path: Path
) -> None:
    terminal.cloud.price = 1.75
    folder = tmp_path / "new" / "catalogue"

    terminal.run(*PRICES, str(folder), "--yes")

    assert [path.name for path in folder.iterdir()] == ["instances.yaml"]
    plan = terminal.run("--catalog", str(folder), "plan", "tiny", "--instance-type",
                        "ml.g5.xlarge", "--json").document  # fmt: skip
    assert plan["price_per_hour_usd"] == 1.75


def test_the_user_s_own_catalogue_is_the_place_for_it(terminal: Terminal, mine: Path) -> None:
    terminal.cloud.price = 1.75

    terminal.run("--catalog", str(mine), "catalog", "refresh", "--prices", "--yes")

    assert price_in(mine) == 1.75
    assert price_in(data_folder("model_catalog")) == 1.408


def test_who_is_denied_is_told_in_one_line(terminal: Terminal, mine: Path) -> None:
    def deny(operation: str) -> None:
        if operation == "get_products":
            raise service_error("AccessDeniedException", "no", "GetProducts")

    terminal.cloud.before = deny

    done = terminal.run(*PRICES, str(mine), "--yes")

    assert done.code == 4
    assert done.error == (
        "error: not allowed: pricing:GetProducts (no) (ask for a policy that allows "
        "pricing:GetProducts)"
    )


def test_the_sandbox_is_no_news_for_the_bundled_catalogue(terminal: Terminal) -> None:
    done = terminal.run("catalog", "refresh", "--prices", "--sandbox", "--yes")

    assert done.code == 2
    assert "--to DIR" in done.error


def test_it_is_in_the_help(terminal: Terminal) -> None:
    assert "refresh" in terminal.run("catalog", "--help").out
