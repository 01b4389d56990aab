"""``peagle weights``: what is refused at once, prices and progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peagle.catalog.loading import load_storage
from peagle.catalog.tables import GB
from peagle.cli.output.weights import month_text, progress_text
from peagle.weights.queue import SyncProgress
from tests.support import Peagle


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


def test_the_price_says_where_from_and_of_when() -> None:
    price = load_storage().price_in("us-east-1")
    assert price is not None

    words = month_text(100 * GB, price, "us-east-1")

    assert words.startswith(f"${100 * price.usd_per_gb_month:.2f} per month: S3 Standard in us-")
    assert str(price.date) in words
    assert load_storage().price_in("mars-north-1") is None
    assert "is unknown" in month_text(GB, None, "mars-north-1")


def _moment(**given: Any) -> SyncProgress:
    usual: dict[str, Any] = {"done": 5_000_000_000, "total": 10_000_000_000, "moved": 1,
                             "speed": 250e6, "seconds_left": 20.0, "file": "target/a"}  # fmt: skip
    return SyncProgress(**{**usual, **given})


def test_progress_in_words() -> None:
    assert progress_text(_moment()) == "Copying | 5.00 of 10.00 GB | 250 MB/s | 20s left | target/a"
    assert progress_text(_moment(seconds_left=None)) == "Copying | 5.00 of 10.00 GB | target/a"
    small = _moment(done=1_000_000, total=2_500_000, seconds_left=None)
    assert progress_text(small) == "Copying | 1.00 of 2.50 MB | target/a"
