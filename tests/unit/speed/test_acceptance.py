"""The acceptance length at any K: from rows, else from publications, else unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.catalog.schema import Drafter, PublishedAcceptance
from peagle.speed.acceptance import NO_DRAFT_ACCEPTANCE, Curve, acceptance_of, curve_through
from tests.unit.speed.cases import CATALOG, CODER, TWENTY, row, run

DECAY = 0.63
HEAD = next(d for d in CATALOG.targets[TWENTY].drafters if d.name == "p-eagle")
NAMES = {HEAD.name, HEAD.weights}


def published(*lengths: tuple[str, int, float]) -> Drafter:
    """The head with these published lengths: benchmark, K and length."""
    found = tuple(
        PublishedAcceptance(benchmark=name, k=k, acceptance_length=length, source="a card")
        for name, k, length in lengths
    )
    return HEAD.model_copy(update={"published": found})


def test_without_a_drafter_or_k_every_step_makes_one_token() -> None:
    assert acceptance_of(None, 0, decay=DECAY) == NO_DRAFT_ACCEPTANCE
    assert acceptance_of(HEAD, 0, decay=DECAY) == NO_DRAFT_ACCEPTANCE


@pytest.mark.parametrize(
    ("lengths", "k", "decay", "expected"),
    [
        ((), 3, DECAY, (1.0, "unknown")),
        ((("chat", 5, 3.1),), 5, DECAY, (3.1, "published")),
        # One length gives others by the usual decay: first = 1.4 / 1.75 = 0.8.
        ((("chat", 3, 2.4),), 5, 0.5, (2.55, "published")),
        # Only benchmarks that were published for most K are averaged.
        ((("a", 3, 2.0), ("a", 7, 3.0), ("b", 3, 3.0), ("b", 7, 4.0), ("c", 7, 8.0)), 7, DECAY,
         (3.5, "published")),
    ],
)  # fmt: skip
def test_published_lengths(
    lengths: tuple[tuple[str, int, float], ...], k: int, decay: float, expected: tuple[float, str]
) -> None:
    found = acceptance_of(published(*lengths), k, decay=decay)
    assert (found.length, found.basis) == expected


def test_a_length_too_large_for_the_usual_decay_decays_more_slowly() -> None:
    found = acceptance_of(published(("code", 10, 6.66)), 18, decay=DECAY)
    assert 6.66 < found.length < 9


def test_the_curve_meets_the_lengths_of_the_qwen_card() -> None:
    head = CATALOG.targets[CODER].drafters[0]
    for k, length in ((4, 4.30), (10, 6.66), (18, 7.51)):
        curve = curve_through(((4, 4.30), (10, 6.66), (18, 7.51)), DECAY)
        assert curve.length(k) == pytest.approx(length, rel=0.06)
        assert acceptance_of(head, k, decay=DECAY).length == length


def test_rows_are_preferred_and_averaged_by_their_tokens() -> None:
    rows = run(
        row(1, 400, "p-eagle", 3, acceptance_length=3.9),
        row(127, 9000, "p-eagle", 3, acceptance_length=2.8),
        row(64, 9000, "eagle3", 3, acceptance_length=2.2),
    )
    found = acceptance_of(HEAD, 3, [rows], NAMES, decay=DECAY)
    assert found.length == pytest.approx((3.9 + 127 * 2.8) / 128, abs=1e-3)
    assert (found.basis, found.source) == ("imposed", "run.json")


def test_measured_on_text_is_preferred_to_imposed() -> None:
    imposed = run(row(8, 400, "p-eagle", 3, acceptance_length=2.8))
    measured = run(
        row(8, 400, "p-eagle", 3, acceptance_length=2.1), synthetic=False, file="own.json"
    )
    found = acceptance_of(HEAD, 3, [imposed, measured], NAMES, decay=DECAY)
    assert (found.length, found.basis, found.source) == (2.1, "measured", "own.json")


@pytest.mark.thorough
@given(
    st.floats(0.05, 0.98),
    st.floats(0.2, 0.95),
    st.lists(st.integers(1, 12), min_size=2, max_size=4, unique=True),
)
def test_a_curve_is_found_from_its_lengths(first: float, decay: float, ks: list[int]) -> None:
    curve = Curve(first, decay)
    found = curve_through(tuple((k, curve.length(k)) for k in sorted(ks)), DECAY)
    for k in ks:
        assert found.length(k) == pytest.approx(curve.length(k), rel=0.01)


@given(st.integers(1, 12), st.floats(1.0, 12.0), st.integers(1, 20))
def test_a_length_grows_with_k_and_is_at_most_k_plus_one(k: int, length: float, more: int) -> None:
    curve = curve_through(((k, min(length, k + 1)),), DECAY)
    assert 0 <= curve.first <= 1
    assert 0 <= curve.decay <= 1
    assert curve.length(k) <= curve.length(k + more) <= k + more + 1
