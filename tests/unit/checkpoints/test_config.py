"""Invalid and valid config.json files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from peagle.checkpoints.files import parse_config
from peagle.errors import CheckpointError
from tests.support import raises_code

GEOMETRY = Path(__file__).parents[2] / "geometry"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "config.json is not valid JSON"),
        ("{", "config.json is not valid JSON: Expecting"),
        ("\ufeff{}", "config.json is not valid JSON"),
        ("[]", "config.json is not a JSON object"),
        ("null", "config.json is not a JSON object"),
        ("[" * 100_000, "cannot be read"),
        ('{"a": ' + "9" * 5000 + "}", "cannot be read: Exceeds the limit"),
        ('{"architectures": ["\\ud800"]}', "has half of a surrogate pair"),
        ('{"hidden_size": "2880"}', "hidden_size is '2880', not a whole number"),
        ('{"hidden_size": 2880.0}', "hidden_size is 2880.0, not a whole number"),
        ('{"hidden_size": true}', "hidden_size is True, not a whole number"),
        ('{"hidden_size": [2880]}', "hidden_size is [2880], not a whole number"),
        ('{"hidden_size": NaN}', "hidden_size is nan, not a whole number"),
        ('{"vocab_size": Infinity}', "vocab_size is inf, not a whole number"),
        ('{"vocab_size": 1e400}', "has the number 1e400, which is too large"),
        ('{"vocab_size": -1}', "vocab_size is -1, not a positive number"),
        ('{"num_hidden_layers": 0}', "num_hidden_layers is 0, not a positive number"),
        ('{"sliding_window": -1}', "sliding_window is -1, not a number of at least 0"),
        ('{"vocab_size": 1' + "0" * 50 + "}", "not a number of at most 2,147,483,647"),
        ('{"ptd_token_id": "7"}', "ptd_token_id is '7'"),
        ('{"text_config": {"head_dim": "64"}}', "text_config.head_dim is '64'"),
        (
            '{"transformer_layer_config": {"hidden_size": -4}}',
            "transformer_layer_config.hidden_size is -4",
        ),
        ('{"text_config": []}', "text_config is [], not an object"),
        ('{"eagle_config": "x"}', "eagle_config is 'x', not an object"),
        ('{"quantization_config": "fp8"}', "quantization_config is 'fp8', not an object"),
        ('{"text_config": {"quantization_config": [8]}}', "text_config.quantization_config is [8]"),
        ('{"hidden_size": "' + "x" * 500 + '"}', "xxx, not a whole number"),
    ],
)
def test_an_invalid_value_is_reported_with_its_key(content: str, text: str) -> None:
    with raises_code("config-damaged", CheckpointError) as refused:
        parse_config(content.encode())
    assert refused.value.message.startswith("config.json")
    assert text in refused.value.message
    assert len(refused.value.message) < 200
    assert refused.value.fix


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"hidden_size": None, "text_config": None},
        {"sliding_window": 0, "num_local_experts": 0},
        {"mask_token_id": -1},
        {"rope_theta": 1e6, "time_step_limit": [0.0, float("inf")], "name": "ü"},
        {"vision_config": {"hidden_size": "not read"}},
    ],
)
def test_values_that_planning_does_not_read_are_accepted(config: dict[str, object]) -> None:
    assert parse_config(json.dumps(config, ensure_ascii=False).encode()) == config


@pytest.mark.parametrize("path", sorted(GEOMETRY.glob("*/*/config.json")), ids=str)
def test_real_configs_are_accepted(path: Path) -> None:
    assert parse_config(path.read_bytes()) == json.loads(path.read_bytes())
