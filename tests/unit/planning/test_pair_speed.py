"""The runs that answer for a pair: those of its drafter, not of another with the same name."""

from __future__ import annotations

from dataclasses import replace

from peagle.planning.candidates import PairLoad
from peagle.planning.pair_speed import names_of, pair_acceptance, runs_of
from tests.unit.planning.small_catalog import CHAT, P_EAGLE
from tests.unit.planning.speeds import measured, row, run

ROW = row("p-eagle", 5, 8, 900.0, acceptance_length=3.1)
UNPUBLISHED = P_EAGLE.model_copy(update={"weights": "s3://my-bucket/head", "published": ()})
WORK = PairLoad(CHAT, UNPUBLISHED, 5, "0.28.0", 4096, 8, measured(run(speeds=(ROW,))))


def test_a_run_of_the_drafter_says_its_acceptance() -> None:
    assert runs_of(WORK)
    found = pair_acceptance(WORK)
    assert (found.basis, found.length) == ("measured", 3.1)


def test_the_users_own_head_does_not_take_the_acceptance_of_a_head_whose_name_it_keeps() -> None:
    own = replace(WORK, own_head=True)
    assert set(names_of(own)) == {"s3://my-bucket/head"}
    assert pair_acceptance(own).basis == "unknown"


def test_the_target_alone_needs_no_acceptance() -> None:
    alone = replace(WORK, drafter=None, k=0, own_head=True)
    assert pair_acceptance(alone).basis == "none"
    assert set(names_of(alone)) == {None}
