"""What a load knows of its engines."""

from dataclasses import replace

from peagle.planning.load import Load
from tests.unit.planning.small_catalog import CHAT, P_EAGLE
from tests.unit.planning.speeds import measured, row, run

UNPUBLISHED = P_EAGLE.model_copy(update={"weights": "s3://my-bucket/head", "published": ()})
RUN = run(speeds=(row("p-eagle", 5, 8, 900.0, acceptance_length=3.1),))


def test_the_runs_of_a_drafter_say_its_acceptance_but_not_that_of_a_head_of_the_same_name() -> None:
    load = Load(CHAT, "0.28.0", 4096, 8, measured(RUN))
    unpublished = replace(load, own_head=UNPUBLISHED)
    acceptance = load.acceptance(UNPUBLISHED, 5)
    assert (acceptance.basis, acceptance.length) == ("measured", 3.1)
    assert set(unpublished.names(UNPUBLISHED)) == {"s3://my-bucket/head"}
    assert unpublished.acceptance(UNPUBLISHED, 5).basis == "unknown"
    assert unpublished.acceptance(None, 0).basis == "none"
