"""The tokenizer: byte-level BPE with chat markers, and its files for vLLM."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from examples.tiny.chats import Chat

BEGIN, END, MASK, PAD = "<|begin|>", "<|end|>", "<|mask|>", "<|pad|>"
SYSTEM, USER, ASSISTANT = "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL = (BEGIN, END, MASK, PAD, SYSTEM, USER, ASSISTANT)
BEGIN_ID, END_ID, MASK_ID, PAD_ID = range(4)

CHAT_TEMPLATE = (
    "{{ '<|begin|>' }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
)


def train(texts: Iterable[str], vocab: int) -> Tokenizer:
    """Train a vocabulary of `vocab` tokens, special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    make_trainer: Callable[..., trainers.BpeTrainer] = trainers.BpeTrainer
    trainer = make_trainer(
        vocab_size=vocab,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, BEGIN_ID)]
    )
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    """Token ids without the begin token."""
    batch = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [encoding.ids for encoding in batch]


def turn(role: str, content: str) -> str:
    """One message in the format of the chat template."""
    return f"{role}\n{content}{END}\n"


def chat_text(chat: Chat) -> str:
    """A whole chat after the begin token."""
    return turn(USER, chat.question) + turn(ASSISTANT, chat.answer)


def save(tokenizer: Tokenizer, folder: Path, positions: int) -> None:
    """Write tokenizer.json, tokenizer_config.json, special_tokens_map.json, chat_template.jinja."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"bos_token": BEGIN, "eos_token": END, "pad_token": PAD}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        "mask_token": MASK,
        "model_max_length": positions,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "special_tokens_map.json").write_text(json.dumps(named, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
