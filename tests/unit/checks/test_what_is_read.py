"""Which checkpoints ``peagle check`` reads, by the locations that it is given."""

from typing import Any

import pytest

from peagle.checkpoints import Checkpoint
from peagle.checks.report import CheckOptions, CheckReport, check
from peagle.errors import UserError
from tests.support import raises_code
from tests.unit.checks.cases import CATALOG, read
from tests.unit.checks.damage import tiny


def checked(pair: str, **options: Any) -> tuple[CheckReport, list[str]]:
    """The report, and the locations that were read, which hold the tiny pair."""
    locations: list[str] = []

    def read_tiny(location: str) -> Checkpoint:
        locations.append(location)
        is_head = "eagle" in location.lower() or "head" in location
        return read(tiny("p-eagle" if is_head else "target"))

    return check(CheckOptions(pair=pair, **options), CATALOG, read_tiny), locations


@pytest.mark.parametrize(("options", "count", "unread"), [
    ({"pair": "tiny"}, 2, ()),
    ({"pair": "tiny+ngram"}, 1, ()),
    ({"pair": "gpt-oss-20b"}, 0, ("target", "drafter")),
    ({"pair": "gpt-oss-20b+ngram"}, 0, ("target",)),
    ({"pair": "gpt-oss-20b", "target": "hf"}, 1, ("drafter",)),
    ({"pair": "gpt-oss-20b", "drafter": "hf"}, 1, ("target",)),
    ({"pair": "gpt-oss-20b", "target": "./mine", "drafter": "./head"}, 2, ()),
    ({"pair": "gpt-oss-20b", "drafter": "eagle3"}, 0, ("target", "drafter")),
    ({"pair": "gemma-4-31b+p-eagle"}, 0, ("target", "drafter")),
])  # fmt: skip
def test_what_is_not_here_is_read_when_it_is_named(
    options: dict[str, Any], count: int, unread: tuple[str, ...]
) -> None:
    report, locations = checked(**options)
    assert len(locations) == len(report.read) == count
    assert report.unread == unread
    flags = [f"--{part}" for part in unread]
    assert [word for word in report.read_command if word.startswith("--")] == flags


@pytest.mark.parametrize(("options", "title"), [
    ({"pair": "tiny"}, "tiny+p-eagle"),
    ({"pair": "gpt-oss-20b", "drafter": "eagle3"}, "+RedHatAI/gpt-oss-20b-speculator.eagle3"),
    ({"pair": "gpt-oss-20b", "drafter": "./head"}, "openai/gpt-oss-20b+./head"),
])  # fmt: skip
def test_the_title_names_the_users_own_head(options: dict[str, Any], title: str) -> None:
    report, _ = checked(**options)
    assert title in report.pair


@pytest.mark.parametrize(("target", "is_own"), [("./mine", True), ("hf", False)])
def test_a_target_of_ones_own_is_not_an_error_of_the_catalogue(target: str, is_own: bool) -> None:
    report, _ = checked("gpt-oss-20b", target=target)
    (differs,) = [finding for finding in report.findings if finding.code == "target-differs"]
    assert differs.fix.startswith("pass the location" if is_own else "correct the catalogue")


@pytest.mark.parametrize(("options", "code"), [
    ({"pair": "tiny+ngram", "drafter": "./head"}, "drafts-without-head"),
    ({"pair": "gpt-oss-20b+eagle3", "drafter": "p-eagle"}, "conflicting-options"),
    ({"pair": "tiny", "target": "hf"}, ""),
    ({"pair": "gpt-oss-20b", "drafter": "eagle9"}, "unknown-drafter"),
    ({"pair": "gpt-oss-20b", "k": 0}, "out-of-range"),
])  # fmt: skip
def test_a_location_that_would_not_be_used_is_refused(options: dict[str, Any], code: str) -> None:
    if not code:
        checked(**options)
        return
    with raises_code(code, UserError):
        checked(**options)
