"""What another machine deployed has no plan here: the user's own catalogue says what to prove."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from peagle.catalog import load_catalog
from peagle.catalog.schema import Catalog
from peagle.deploy.comparison import CandidateNotProved
from peagle.deploy.proving import request_of_served
from peagle.deploy.revisions import CANDIDATE
from peagle.deploy.state import served_by_plan
from tests.unit.aws.cloud import Engine
from tests.unit.aws.plans import a_plan, another
from tests.unit.aws.world import World

OF_CATALOGUE = "openai/gpt-oss-20b"
OWN_PROMPT = "A question of the user's own catalogue?"


def own_catalog() -> Catalog:
    """The bundled catalogue with the target of ``a_plan``, which has one prompt."""
    bundled = load_catalog()
    known = bundled.targets["openai/gpt-oss-20b"]
    proof = known.proof.model_copy(update={"prompts": (OWN_PROMPT,)})
    own = known.model_copy(update={"id": "a/target", "proof": proof})
    return replace(bundled, targets={**bundled.targets, own.id: own})


@pytest.mark.parametrize(
    ("tagged", "named"),
    [
        (f"{OF_CATALOGUE}+amazon/GPT-OSS-20B-P-EAGLE", f"{OF_CATALOGUE}+p-eagle"),
        (f"{OF_CATALOGUE}+acme/head", OF_CATALOGUE),
        (OF_CATALOGUE, OF_CATALOGUE),
        ("acme/unknown+acme/head", ""),
        ("", ""),
    ],
)
def test_the_commands_of_a_proof_name_what_the_catalogue_has(tagged: str, named: str) -> None:
    served = served_by_plan(a_plan()).model_copy(update={"pair": tagged})
    assert request_of_served(served, load_catalog()).pair == named


def _rollback(world: World) -> None:
    world.deploy(another(a_plan()))
    world.forget()
    world.rollback()


def _promote(world: World) -> None:
    world.compare(another(a_plan()))
    world.forget()
    world.promote()


def _drop(world: World) -> None:
    world.compare(another(a_plan()))
    world.forget()
    world.drop()


def _failed_comparison(world: World) -> None:
    world.forget()
    world.cloud.engines[CANDIDATE] = Engine(acceptance=1.2)
    with pytest.raises(CandidateNotProved):
        world.compare(another(a_plan()))


@pytest.mark.parametrize("change", [_rollback, _promote, _drop, _failed_comparison])
def test_a_revision_without_a_plan_is_proved_by_the_users_catalogue(
    world: World, change: Callable[[World], None]
) -> None:
    world.catalog = own_catalog()
    world.deploy(a_plan())
    change(world)
    assert world.cloud.engine.prompts[-1]["messages"][0]["content"] == OWN_PROMPT
