"""What a bench knows about an endpoint on AWS before it measures it."""

from __future__ import annotations

import pytest

from peagle.bench.targets import setting_of_config, target_of_endpoint
from peagle.catalog import load_catalog
from peagle.errors import UserError
from tests.support import raises_code
from tests.unit.aws.cloud import FakeAws
from tests.unit.aws.plans import a_plan
from tests.unit.aws.world import NAME, World


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake account has neither credentials nor an address."""
    monkeypatch.setattr(FakeAws, "bearer_token", lambda *_: "sagemaker-api-key-x")
    monkeypatch.setattr(
        FakeAws, "openai_base_url", lambda _, name, component="": f"https://r/{name}/openai/v1"
    )


def test_a_deployment_has_its_price_model_and_setting(world: World) -> None:
    world.deploy(a_plan())

    target = target_of_endpoint(world.aws, NAME, world.record(), load_catalog())

    assert target.server.base_url == f"https://r/{NAME}/openai/v1"
    assert target.server.key == "sagemaker-api-key-x"
    assert "sagemaker-api-key" not in repr(target)
    assert target.server.chat
    assert target.usd_per_hour == 1.408
    assert target.price_source == "AWS's on-demand price on 2026-11-20"
    assert target.facts.where == "aws"
    assert target.facts.gpu_count == 1
    assert (target.setting.drafter, target.setting.k) == ("p-eagle", 5)
    counted = target.read_counters()
    assert counted is not None


def test_an_endpoint_of_another_program_needs_the_name_of_its_model(world: World) -> None:
    world.deploy(a_plan())

    with raises_code("model", UserError) as raised:
        target_of_endpoint(world.aws, NAME, None, load_catalog())

    assert "--model" in raised.value.fix
    target = target_of_endpoint(world.aws, NAME, None, load_catalog(), "org/model")
    assert target.server.model == "org/model"
    assert target.usd_per_hour is None


@pytest.mark.parametrize(
    ("config", "name", "k"),
    [
        ({"method": "eagle3", "parallel_drafting": True, "num_speculative_tokens": 7},
         "p-eagle", 7),
        ({"method": "mtp", "num_speculative_tokens": 1}, "mtp", 1),
        ({"num_speculative_tokens": 3}, "draft-model", 3),
    ],
)  # fmt: skip
def test_a_speculative_config_is_a_setting(config: dict[str, object], name: str, k: int) -> None:
    assert setting_of_config(config).drafter == name
    assert setting_of_config(config).k == k


def test_without_a_speculative_config_nothing_speculates() -> None:
    assert setting_of_config({}).text == "no speculation"
