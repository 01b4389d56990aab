"""What an update changes is shown in the user's terms, from plans or from what is in service."""

from __future__ import annotations

from typing import Any

import pytest

from peagle.deploy.diff import changes
from peagle.deploy.state import Served, served_by_plan
from peagle.planning.plan import RuntimeChoice
from tests.unit.aws.plans import IMAGE, a_plan
from tests.unit.aws.world import World

BEFORE = served_by_plan(a_plan())


def _changed(**fields: Any) -> list[str]:
    """The texts of the changes from ``BEFORE``."""
    return [change.text for change in changes(BEFORE, BEFORE.model_copy(update=fields))]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"k": 3}, "K 5 -> 3"),
        ({"k": 0}, "K 5 -> no speculation"),
        ({"max_model_len": 4096}, "context none -> 4096"),
        ({"instance_type": "ml.g6e.xlarge"}, "instance ml.g5.xlarge -> ml.g6e.xlarge"),
        ({"instance_count": 2}, "instances 1 -> 2"),
        ({"usd_per_hour": 2.5}, "price per hour $1.41 -> $2.50"),
        ({"usd_per_hour": None}, "price per hour $1.41 -> unknown"),
        ({"ami": "al2023"}, "host AMI none -> al2023"),
        ({"startup_timeout_seconds": 900}, "start-up timeout 600 s -> 900 s"),
        ({"image": f"{IMAGE[:-6]}0.28.1"}, "image 0.28.0 -> 0.28.1"),
        ({"image": "other/vllm:1"}, f"image {IMAGE} -> other/vllm:1"),
        (
            {"settings": BEFORE.settings | {"kv-cache-dtype": "fp8"}},
            "--kv-cache-dtype default -> fp8",
        ),
        ({"settings": BEFORE.settings | {"enforce-eager": None}}, "--enforce-eager default -> set"),
        ({"variables": {"A": "1"}}, "A default -> 1"),
        ({"variables": {"HF_TOKEN": "hf_1"}}, "HF_TOKEN default -> (hidden)"),
        (
            {"weights": {"model": "s3://bucket/other/"}},
            "weights in /opt/ml/model default -> s3://bucket/other/",
        ),
    ],
)
def test_every_setting_has_its_words(fields: dict[str, Any], text: str) -> None:
    assert text in _changed(**fields)


def test_digests_are_shortened_and_complete_in_json() -> None:
    old, new = (f"repository/vllm@sha256:{digit * 64}" for digit in "ab")
    before = BEFORE.model_copy(update={"image": old})
    (change,) = changes(before, before.model_copy(update={"image": new}))
    assert change.text == "image sha256:aaaaaaaaaaaa -> sha256:bbbbbbbbbbbb"
    assert change.document() == {"setting": "image", "before": old, "after": new}


def test_a_secret_is_hidden_in_json_too() -> None:
    (change,) = changes(BEFORE, BEFORE.model_copy(update={"variables": {"API_KEY": "1"}}))
    assert change.document() == {"setting": "variable.API_KEY", "before": None, "after": "(hidden)"}


def test_what_the_account_does_not_say_is_not_a_change() -> None:
    live = BEFORE.model_copy(update={"vllm": None, "pair": ""})
    assert changes(live, BEFORE) == ()


def test_another_head_is_a_change_of_the_drafter() -> None:
    served = [_with_head(BEFORE, head) for head in ("a/head", "b/head")]
    assert [one.text for one in changes(*served)] == ["drafter a/head -> b/head"]


def _with_head(served: Served, head: str) -> Served:
    text = f'{{"method": "eagle3", "model": "{head}", "num_speculative_tokens": 5}}'
    return served.model_copy(update={"settings": {"speculative-config": text}})


def test_an_update_is_compared_with_the_instances_that_run(world: World) -> None:
    world.deploy(a_plan())
    (config,) = world.cloud.configs.values()
    (variant,) = config["ProductionVariants"]
    variant["InitialInstanceCount"] = 3  # as after scaling out
    runtime = RuntimeChoice(vllm="0.28.1", image=f"{IMAGE}.1", cuda="13.0", ami=None)
    found = world.preflight(a_plan(runtime=runtime))
    texts = [change.text for change in found.changes]
    assert "instances 3 -> 1" in texts
    assert "price per hour $4.22 -> $1.41" in texts
    assert "image 0.28.0 -> 0.28.0.1" in texts
    assert "vLLM 0.28.0 -> 0.28.1" in texts
