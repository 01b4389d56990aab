"""Pairs for the real engine that the rules' corpus does not have.

Their damage shows more clearly in real vLLM than that of the corpus, which only needs to be visible
in a header. Good pairs are here for comparison.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from peagle.catalog import find_pair
from peagle.checks import Case
from tests.engine.damage import GUARD, PROMPTS, TILES, Trial
from tests.unit.checks.cases import CATALOG, make_case, read, speculators_case, tiny_case
from tests.unit.checks.corpus_heads import FULL, ONES, SLIDING, layer_types
from tests.unit.checks.damage import (
    WEIGHTS,
    Damage,
    RawTensor,
    as_speculators,
    damaged,
    integers,
    read_tensors,
    tiny,
)

EMBEDDINGS = "model.embed_tokens.weight"
LONG = (PROMPTS[0] * 8, *PROMPTS[1:6])
"""One long request beside five short ones, in one batch."""
TARGET = read_tensors(tiny("target") / WEIGHTS)
ROW = 2 * TARGET[EMBEDDINGS].shape[1]
UPPER = RawTensor("BF16", (512, 256), TARGET[EMBEDDINGS].data[512 * ROW :])
"""The target's output matrix for the token ids from 512 up."""
ROTATED = RawTensor(
    "BF16", (1024, 256), TARGET[EMBEDDINGS].data[ROW:] + TARGET[EMBEDDINGS].data[:ROW]
)
"""The target's embeddings in the order of a tokenizer with other ids."""


def upper_half(**more: RawTensor) -> Damage:
    """A head that drafts the token ids from 512 up only, with these tensors beside ``lm_head``."""
    return Damage(set_keys={"draft_vocab_size": 512}, add={"lm_head.weight": UPPER, **more})


def another_tokenizer(folder: Path) -> Case:
    """A head trained with a different tokenizer, which is in its folder."""
    rotated = {"embed_tokens.weight": ROTATED, "lm_head.weight": ROTATED}
    case = tiny_case(folder, Damage(add=rotated))
    vocabulary = json.loads((tiny("target") / "tokenizer.json").read_text())
    last = max(vocabulary["model"]["vocab"], key=vocabulary["model"]["vocab"].get)
    del vocabulary["model"]["vocab"][last]
    (folder / "head/tokenizer.json").write_text(json.dumps(vocabulary))
    return make_case(
        CATALOG,
        case.target,
        case.drafter,
        target_checkpoint=case.target_checkpoint,
        drafter_checkpoint=read(folder / "head"),
    )


def other_target(folder: Path, config: dict[str, Any]) -> Case:
    """The tiny head with a target of these numbers and without weights."""
    numbers = json.loads((tiny("target") / "config.json").read_text())
    return tiny_case(folder, target=Damage(text=json.dumps(numbers | config)))


def four_layers(folder: Path, model_type: str) -> Case:
    """The EAGLE-3 head in the speculators format with a fourth layer, of which ``fc`` makes 0."""
    key, layers = "eagle_aux_hidden_state_layer_ids", [2, 5, 7, 8]
    norms = {f"midlayer.self_attn.{name}_norm.weight": ONES for name in "qk"}
    damage = Damage(
        set_keys={
            "transformer_layer_config.model_type": model_type,
            **(
                {key: layers}
                if model_type == "qwen3"
                else {f"transformer_layer_config.eagle_config.{key}": layers}
            ),
        },
        drop_keys=(key,) if model_type == "llama" else (),
        cut={"fc.weight": (256, 1024)},
        add={
            name: RawTensor("BF16", (64,), weight * 64)
            for name, weight in (norms if model_type == "qwen3" else {}).items()
        },
    )
    return speculators_case(folder, "eagle3", damage, pair="tiny+eagle3")


def hybrid(folder: Path, layers: int) -> Case:
    """The tiny head with GPT-OSS's layers: alternating sliding and full attention."""
    kinds = ["sliding_attention", "full_attention"] * (layers // 2)
    config = {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss",
        "num_hidden_layers": layers, "layer_types": kinds, "sliding_window": 128,
        "num_local_experts": 2, "num_experts_per_tok": 2, "intermediate_size": 256,
    }  # fmt: skip
    return other_target(folder, config)


def autodetected(folder: Path, part: str, kind: str) -> Case:
    """A head in the speculators format that is served as the model itself."""
    config = as_speculators(json.loads((tiny(part) / "config.json").read_text()), kind)
    config["speculators_config"]["verifier"]["name_or_path"] = str(tiny("target"))
    pair = find_pair(CATALOG, f"tiny+{part}")
    head = damaged(tiny(part), folder / "head", Damage(text=json.dumps(config)))
    return make_case(
        CATALOG,
        pair.target,
        pair.drafter,
        target_checkpoint=read(tiny("target")),
        drafter_checkpoint=read(head),
    )


GOOD = {
    "P-EAGLE": Trial(tiny_case),
    "EAGLE-3": Trial(lambda f: tiny_case(f, head="eagle3", pair="tiny+eagle3")),
    "P-EAGLE, speculators": Trial(lambda f: speculators_case(f, "peagle")),
    "EAGLE-3, speculators": Trial(lambda f: speculators_case(f, "eagle3", pair="tiny+eagle3")),
    "P-EAGLE, autodetected": Trial(
        lambda f: autodetected(f, "p-eagle", "peagle"), autodetected=True
    ),
    "EAGLE-3, autodetected": Trial(
        lambda f: autodetected(f, "eagle3", "eagle3"), autodetected=True
    ),
    "half of the vocabulary": Trial(
        lambda f: tiny_case(f, upper_half(d2t=integers([512] * 512)))
    ),
    "a long request": Trial(tiny_case, prompts=LONG),
    "four layers, as the fix says": Trial(lambda f: four_layers(f, "llama")),
    "four layers and Qwen3's layers": Trial(lambda f: four_layers(f, "qwen3")),
    "full and sliding layers in one group": Trial(
        lambda f: tiny_case(
            f,
            layer_types(FULL, *[SLIDING] * 3, window=4096),
            settings={"disable-hybrid-kv-cache-manager": True},
        )
    ),
    "the layer after the last": Trial(
        lambda f: tiny_case(
            f, Damage(set_keys={"eagle_config.eagle_aux_hidden_state_layer_ids": [2, 5, 8]})
        )
    ),
    "bfloat16 on a CPU with tiles, started as the container does": Trial(
        tiny_case, engine={"dtype": "bfloat16"}, before=(TILES, GUARD)
    ),
    "a hybrid target of 12 and 12 layers": Trial(
        lambda f: hybrid(f, 24),
        engine={"load_format": "dummy", "dtype": "bfloat16", "num_gpu_blocks_override": 160},
        prompts=PROMPTS[:2],
        before=(GUARD,),
    ),
}  # fmt: skip
"""Pairs that vLLM serves and whose head no rule refuses."""
BROKEN = {
    "a reduced vocabulary without d2t": Trial(lambda f: tiny_case(f, upper_half())),
    "a reduced vocabulary without lm_head": Trial(
        lambda f: tiny_case(
            f, Damage(set_keys={"draft_vocab_size": 512}, add={"d2t": integers([512] * 512)})
        )
    ),
    "lm_head with other rows": Trial(
        lambda f: tiny_case(
            f, replace(upper_half(d2t=integers([0] * 256)), set_keys={"draft_vocab_size": 256})
        )
    ),
    "a smaller vocabulary": Trial(
        lambda f: tiny_case(f, Damage(set_keys={"vocab_size": 512, "draft_vocab_size": 512}))
    ),
    "mask of two hidden states": Trial(
        lambda f: tiny_case(f, Damage(cut={"mask_hidden": (1, 1, 512)}))
    ),
    "no fc": Trial(lambda f: tiny_case(f, Damage(drop=("fc.weight",)))),
    "FP8 in config.json and not in the weights": Trial(
        lambda f: tiny_case(
            f,
            Damage(
                set_keys={
                    "quantization_config": {"quant_method": "fp8", "activation_scheme": "dynamic"}
                }
            ),
        ),
        engine={"dtype": "bfloat16"},
        before=(GUARD,),
    ),
    "another tokenizer": Trial(another_tokenizer),
    "a target with a layer less": Trial(
        lambda f: tiny_case(
            f,
            target=Damage(
                set_keys={"num_hidden_layers": 7},
                drop=tuple(name for name in TARGET if ".layers.7." in name),
            ),
        )
    ),
    "a target without auxiliary hidden states": Trial(
        lambda f: other_target(
            f, {"architectures": ["StableLmForCausalLM"], "model_type": "stablelm"}
        ),
        engine={"load_format": "dummy"},
    ),
    "a hybrid target of 4 and 4 layers": Trial(
        lambda f: hybrid(f, 8), engine={"load_format": "dummy", "num_gpu_blocks_override": 160}
    ),
    "K of 20": Trial(lambda f: tiny_case(f, k=20)),
    "a long request above the head's context": Trial(
        lambda f: tiny_case(f, Damage(set_keys={"max_position_embeddings": 200})), prompts=LONG
    ),
}
"""Broken pairs whose damage shows more clearly in real vLLM than that of the corpus."""
