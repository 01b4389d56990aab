"""The damaged pairs have the requested damage and no other."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from tests.unit.checks.damage import (
    WEIGHTS,
    Damage,
    RawTensor,
    cut,
    damaged,
    integers,
    read_tensors,
    retyped,
    tiny,
)


@pytest.mark.parametrize("part", ["target", "p-eagle", "eagle3"])
def test_without_damage_a_copy_holds_the_same(tmp_path: Path, part: str) -> None:
    copy = damaged(tiny(part), tmp_path / part, Damage())

    assert read_tensors(copy / WEIGHTS) == read_tensors(tiny(part) / WEIGHTS)
    ours, theirs = (json.loads((at / "config.json").read_text()) for at in (copy, tiny(part)))
    assert ours == theirs


def test_only_the_requested_parts_are_damaged(tmp_path: Path) -> None:
    damage = Damage(
        set_keys={"eagle_config.eagle_aux_hidden_state_layer_ids": [2, 2, 7]},
        drop_keys=("ptd_token_id",),
        drop=("mask_hidden",),
        rename={"norm.weight": "final.weight"},
        cut={"fc.weight": (256, 512)},
        add={"d2t": integers([0, 1])},
    )

    head = damaged(tiny("p-eagle"), tmp_path / "head", damage)

    before, after = read_tensors(tiny("p-eagle") / WEIGHTS), read_tensors(head / WEIGHTS)
    assert set(before) - set(after) == {"mask_hidden", "norm.weight"}
    assert set(after) - set(before) == {"final.weight", "d2t"}
    assert after["fc.weight"].shape == (256, 512)
    assert after["fc.weight"].data[:1024] == before["fc.weight"].data[:1024]
    assert after["midlayer.mlp.up_proj.weight"] == before["midlayer.mlp.up_proj.weight"]
    config = json.loads((head / "config.json").read_text())
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 2, 7]
    assert config["eagle_config"]["use_aux_hidden_state"] is True
    assert "ptd_token_id" not in config


def test_a_tensor_is_cut_and_filled_up_along_every_axis() -> None:
    square = RawTensor("U8", (2, 2), bytes([1, 2, 3, 4]))

    assert cut(square, (1, 1)).data == bytes([1])
    assert cut(square, (2, 3)).data == bytes([1, 2, 0, 3, 4, 0])
    assert cut(square, (3, 2)).data == bytes([1, 2, 3, 4, 0, 0])


@pytest.mark.parametrize(("dtype", "code"), [("F32", "f"), ("F16", "e")])
def test_retyped_values_are_the_same_values(dtype: str, code: str) -> None:
    bfloat = RawTensor("BF16", (2,), struct.pack("<f", 1.5)[2:] + struct.pack("<f", -0.25)[2:])

    assert struct.unpack(f"<2{code}", retyped(bfloat, dtype).data) == (1.5, -0.25)
