"""``peagle weights``: what is refused at once, prices and progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peagle.cli.view.weights import (
    SyncProgressBar,
    resume_hint,
    use_command,
)
from peagle.errors import CloudError, Refused
from peagle.session import Account
from peagle.weights.layout import weights_prefix
from peagle.weights.manifest import FileEntry, FolderEntry
from peagle.weights.sync import SyncProgress
from tests.support import Peagle

PLACE = weights_prefix("s3://models/pair")
RESUME, REMOVE = ("peagle", "weights", "sync"), ("peagle", "weights", "remove")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("s3://m", "--target-only"), "not an s3:// prefix"),
        (("s3://models/a", "--target-only", "--drafter-only"), "are mutually exclusive"),
        (("s3://models/a", "--target-only", "--drafter-from", "./x"), "cannot be combined"),
        (("s3://models/a", "--target-from", "nonsense"), "is not a weights location"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(
    peagle: Peagle, own_home: Path, words: tuple[str, ...], message: str
) -> None:
    done = peagle("weights", "sync", "tiny", *words, "--sandbox", "--yes")

    assert done.returncode == 2
    assert message in done.stderr
    assert "Starting the sandbox" not in done.stderr


def test_a_pair_without_a_head_has_no_drafter_to_copy(peagle: Peagle, own_home: Path) -> None:
    done = peagle("weights", "sync", "tiny+ngram", "s3://models/a", "--drafter-only", "--sandbox")

    assert done.returncode == 2
    assert "drafts without weights" in done.stderr


def _moment(**given: Any) -> SyncProgress:
    usual: dict[str, Any] = {"done": 5_000_000_000, "total": 10_000_000_000, "moved": 1,
                             "speed": 250e6, "seconds_left": 20.0}  # fmt: skip
    return SyncProgress(**{**usual, **given})


@pytest.mark.parametrize(
    ("progress", "error", "said"),
    [
        (None, KeyboardInterrupt(), "This run copied no file to s3://models/pair/. Resume: "),
        (None, CloudError("broken"), "This run copied no file to s3://models/pair/. Resume: "),
        (_moment(), CloudError("broken"), "At s3://models/pair/: 5.0 GB of 10.0 GB. Finished"),
        (_moment(), Refused("in use"), ""),
    ],
)
def test_after_a_broken_copy_the_user_learns_what_is_there_and_how_to_resume(
    capsys: pytest.CaptureFixture[str],
    progress: SyncProgress | None,
    error: BaseException,
    said: str,
) -> None:
    bar = SyncProgressBar()
    bar.progress = progress
    with pytest.raises(type(error)), resume_hint(bar, PLACE, RESUME, REMOVE), bar:
        raise error

    shown = capsys.readouterr().err
    assert shown.startswith(said)
    assert ("peagle weights sync" in shown) == bool(said)
    assert ("Remove: peagle weights remove" in shown) == (bool(said) and progress is not None)


def test_an_error_before_the_copy_starts_needs_no_resume(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bar = SyncProgressBar()
    with pytest.raises(CloudError), resume_hint(bar, PLACE, RESUME, REMOVE):
        raise CloudError("no such bucket")

    assert capsys.readouterr().err == ""


def test_the_command_that_uses_weights_names_their_parts_region_and_account() -> None:
    folder = FolderEntry("a/b", complete=True)

    both = use_command("tiny", PLACE, {"target": folder, "drafter": folder}, "us-east-1", Account())
    far = use_command("tiny", PLACE, {"drafter": folder}, "eu-west-1", Account(profile="work"))

    assert both == (
        "peagle", "plan", "tiny", "--model-source", "s3://models/pair/target/",
        "--drafter", "s3://models/pair/drafter/",
    )  # fmt: skip
    assert far == (
        "peagle", "plan", "tiny", "--drafter", "s3://models/pair/drafter/",
        "--region", "eu-west-1", "--online",
    )  # fmt: skip


def test_the_command_that_uses_weights_names_the_vocabulary_beside_them() -> None:
    target = FolderEntry("a/b", complete=True, files={"o200k_base.tiktoken": FileEntry(1)})
    head = FolderEntry("a/c", complete=True)

    both = use_command("tiny", PLACE, {"target": target, "drafter": head}, "us-east-1", Account())
    alone = use_command("tiny", PLACE, {"target": target}, "us-east-1", Account())

    assert "TIKTOKEN_ENCODINGS_BASE=/opt/ml/model/target" in both
    assert alone[-2:] == ("--env", "TIKTOKEN_ENCODINGS_BASE=/opt/ml/model")
