"""Train the target of `peagle/tiny` and write it to the catalogue with its measuring prompts.

    python -m examples.tiny.train

Its heads are trained by `peagle train`, from the questions that examples.tiny.questions writes.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import time
from pathlib import Path

import torch

from examples.tiny import corpus, export, prompts, target, tokenizer
from examples.tiny.batches import Batches
from examples.tiny.corpus import Corpus
from examples.tiny.recipe import FULL, SMOKE, Recipe
from examples.tiny.target import Target


def train(text: Corpus, recipe: Recipe, out: Path) -> None:
    """Train a tokenizer and the target, and write them with prompts.json and training.json."""
    start = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(recipe.seed)
    torch.set_float32_matmul_precision("high")
    texts = [chat.question + "\n" + chat.answer for chat in text.train_chats[::4]]
    texts += [file.text for file in text.train_files]
    vocabulary = tokenizer.train(texts, recipe.target_shape.vocab)
    batches = Batches(text, vocabulary, recipe.sizes, device, recipe.seed)
    model = Target(recipe.target_shape).to(device)
    loss = target.train(model, batches, recipe.target_steps, recipe.target_rate)
    export.write_target(model, out / "target")
    tokenizer.save(vocabulary, out / "target", recipe.target_shape.positions)
    prompts.write(prompts.select(text, recipe.seed), out / "prompts.json")
    record = {
        "date": datetime.date.today().isoformat(),
        "data": {
            "source": f"standard library of CPython {text.python}: source files, "
            "docstrings and pydoc_data topics",
            "licence": "PSF-2.0",
            "train_files": len(text.train_files),
            "held_out_files": len(text.held_out_files),
            "train_chats": len(text.train_chats),
            "held_out_modules": sorted(corpus.HELD_OUT),
        },
        "seed": recipe.seed,
        "recipe": dataclasses.asdict(recipe),
        "stages": {
            "target": {
                "held_out_loss": loss,
                "parameters": sum(weight.numel() for weight in model.parameters()),
                "seconds": round(time.monotonic() - start, 1),
                "device": torch.cuda.get_device_name()
                if device.type == "cuda"
                else f"{os.cpu_count()} CPU cores",
                "torch": str(torch.__version__),
            }
        },
    }
    (out / "training.json").write_text(json.dumps(record, indent=2) + "\n")


def main() -> None:
    """Train with the recipe that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=Path("model_catalog/peagle/tiny"))
    parser.add_argument("--stdlib", type=Path, help="default: the running Python's")
    parser.add_argument("--smoke", action="store_true", help="toy sizes, to try the code")
    options = parser.parse_args()
    train(corpus.build(options.stdlib), SMOKE if options.smoke else FULL, options.out)


if __name__ == "__main__":
    main()
