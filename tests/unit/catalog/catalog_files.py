"""A small catalogue of a user's own, to write and damage."""

from pathlib import Path

GOOD = """\
id: acme/chat-7b
short_name: chat-7b
title: Acme Chat 7B
weights: acme/chat-7b
revision: main
licence: apache-2.0
weight_bytes: 14_000_000_000
parameters: 7_000_000_000
min_vllm: "0.20.0"
default_max_model_len: 8192
architecture:
  class_name: LlamaForCausalLM
  hidden_size: 4096
  layers: 32
  query_heads: 32
  attention:
    - {kind: full, layers: 32, kv_heads: 8, head_dim: 128}
  vocab_size: 128256
  intermediate_size: 14336
  max_positions: 8192
default_drafter: p-eagle
drafters:
  - name: p-eagle
    title: P-EAGLE head for Acme Chat
    method: eagle3
    parallel_drafting: true
    weights: acme/chat-7b-p-eagle
    min_vllm: "0.22.0"
    k_trained: 8
    k_recommended: 5
    engine_arguments:
      - {name: stream-interval, value: 4, because: it is nicer}
    published:
      - {benchmark: MT-Bench, k: 5, acceptance_length: 2.5, source: the card}
    source: the card
  - name: ngram
    title: n-gram
    method: ngram
    min_vllm: "0.20.0"
    k_recommended: 4
    source: the documentation
proof:
  prompts: [Hello]
source: the card
"""


def write_target(folder: Path, text: str = GOOD, place: str = "acme/chat-7b") -> Path:
    """A target's file in the catalogue ``folder``."""
    path = folder / f"{place}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path
