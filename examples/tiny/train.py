"""Train the pair `peagle/tiny` and write it to the catalogue.

    python -m examples.tiny.train corpus              # once, with the Python whose library to use
    python -m examples.tiny.train target p-eagle eagle3 export

Each stage writes its result to the work folder, and a later call continues from there.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import nn

from examples.tiny import corpus, drafting, export, generate, prompts, target, tokenizer
from examples.tiny.batches import Batches
from examples.tiny.drafting import HeadRecipe, Rollout
from examples.tiny.heads import Head, PEagle
from examples.tiny.recipe import FULL, SMOKE, Recipe
from examples.tiny.target import Target

MEASURED_DEPTH = 5
ANSWER_TOKENS = 200


class Training:
    """One training: its work folder, device and recipe; the stages are its methods."""

    def __init__(self, work: Path, out: Path, recipe: Recipe) -> None:
        self.work, self.out, self.recipe = work, out, recipe
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.text = corpus.load(work / "corpus.json.gz")
        self.tokenizer = self._tokenizer()
        self.batches = Batches(self.text, self.tokenizer, recipe.sizes, self.device, recipe.seed)
        work.mkdir(parents=True, exist_ok=True)
        self.start = time.monotonic()
        torch.set_float32_matmul_precision("high")

    def target(self) -> None:
        """Train the target on the corpus."""
        model = Target(self.recipe.target_shape).to(self.device)
        loss = target.train(model, self.batches, self.recipe.target_steps, self.recipe.target_rate)
        target.round_to_bfloat16(model)
        self._save("target", model, {"held_out_loss": loss})

    def p_eagle(self) -> None:
        """Train the P-EAGLE head."""
        self._head("p-eagle", PEagle(self.recipe.p_eagle_shape), self.recipe.p_eagle)

    def eagle3(self) -> None:
        """Train the one-layer EAGLE-3 head."""
        self._head("eagle3", Head(self.recipe.eagle3_shape), self.recipe.eagle3)

    def export(self) -> None:
        """Write the checkpoints, the tokenizer, the prompts and the record of the training."""
        export.write_target(self._target(), self.out / "target")
        positions = self.recipe.target_shape.positions
        tokenizer.save(self.tokenizer, self.out / "target", positions)
        p_eagle, eagle3 = PEagle(self.recipe.p_eagle_shape), Head(self.recipe.eagle3_shape)
        for name, head in {"p-eagle": p_eagle, "eagle3": eagle3}.items():
            self._load(name, head)
            export.write_head(head, self.out / name)
        prompts.write(prompts.select(self.text, self.recipe.seed), self.out / "prompts.json")
        (self.out / "training.json").write_text(json.dumps(self._record(), indent=2) + "\n")

    def run(self, stage: str) -> None:
        """Run one stage, with the same seed whether or not other stages ran before."""
        torch.manual_seed(self.recipe.seed)
        self.start = time.monotonic()
        STAGES[stage](self)

    def _target(self) -> Target:
        model = Target(self.recipe.target_shape)
        self._load("target", model)
        return model.requires_grad_(False)

    def _head(self, name: str, head: Head, recipe: HeadRecipe) -> None:
        model = self._target()
        head = head.to(self.device)
        drafting.train(head, model, recipe, self._training_batches(model), name)
        target.round_to_bfloat16(head)
        rates = drafting.acceptance(head, model, self._held_out(model), MEASURED_DEPTH)
        length = 1 + sum(rates)
        print(f"{name}: simulated acceptance length {length:.3f} {rates}", file=sys.stderr)
        self._save(name, head, {"simulated_acceptance_length": length})

    def _training_batches(self, model: Target) -> Iterator[Rollout]:
        """Training data of the heads: three batches of the target's own text per one of files."""
        recipe = self.recipe
        tokens, lengths = self._rollouts(model)

        def own() -> Rollout:
            rows = torch.randint(len(tokens), (recipe.head_rows,), device=self.device)
            return tokens[rows].long(), lengths[rows]

        def files() -> Rollout:
            batch = self.batches.files(recipe.head_file_rows, recipe.head_file_tokens)
            return batch, torch.ones(len(batch), dtype=torch.long, device=self.device)

        return drafting.mixed([own, own, own, files])

    def _rollouts(self, model: Target) -> tuple[torch.Tensor, torch.Tensor]:
        """The target's continuations of training prompts, generated once and saved."""
        path = self.work / "rollouts.pt"
        if not path.exists():
            start = time.monotonic()
            parts = [self._rollout(model) for _ in range(self._rounds())]
            tokens, lengths = (torch.cat(column) for column in zip(*parts, strict=True))
            torch.save((tokens.short().cpu(), lengths.cpu()), path)
            print(f"rollouts {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
        tokens, lengths = torch.load(path, weights_only=True)
        return tokens.to(self.device), lengths.to(self.device)

    def _rounds(self) -> int:
        return self.recipe.rollout_prompts // self.recipe.rollout_rows

    def _rollout(self, model: Target) -> Rollout:
        recipe = self.recipe
        tokens, lengths = self.batches.prompts(recipe.rollout_rows, recipe.prompt_tokens)
        choices = torch.tensor(recipe.temperatures, device=self.device)
        temperature = choices[torch.arange(len(tokens), device=self.device) % len(choices)]
        rollout = generate.rollout(model, tokens, lengths, recipe.rollout_tokens, temperature)
        return rollout, lengths

    def _held_out(self, model: Target) -> Rollout:
        """Greedy continuations of the held-out prompts."""
        texts = [
            tokenizer.question_text(p["prompt"]) if p["kind"] == "chat" else p["prompt"]
            for p in prompts.select(self.text, self.recipe.seed)
        ]
        ids = [[tokenizer.BEGIN_ID, *row] for row in tokenizer.encode(self.tokenizer, texts)]
        longest = max(map(len, ids))
        padded = [row + [tokenizer.PAD_ID] * (longest - len(row)) for row in ids]
        prompt_ids = torch.tensor(padded, device=self.device)
        lengths = torch.tensor([len(row) for row in ids], device=self.device)
        greedy = torch.zeros(len(prompt_ids), device=self.device)
        tokens = generate.rollout(model, prompt_ids, lengths, longest + ANSWER_TOKENS, greedy)
        positions = torch.arange(tokens.shape[1], device=self.device)
        beyond = positions >= lengths[:, None] + ANSWER_TOKENS
        return tokens.masked_fill(beyond, tokenizer.PAD_ID), lengths

    def _tokenizer(self) -> Tokenizer:
        path = self.work / "tokenizer.json"
        if not path.exists():
            texts = [chat.question + "\n" + chat.answer for chat in self.text.train_chats[::4]]
            texts += [file.text for file in self.text.train_files]
            tokenizer.train(texts, self.recipe.target_shape.vocab).save(str(path))
        return Tokenizer.from_file(str(path))

    def _save(self, name: str, model: nn.Module, figures: dict[str, float]) -> None:
        """Save a stage's weights and figures, its device and its duration in seconds."""
        weights = {key: value.bfloat16() for key, value in model.state_dict().items()}
        torch.save(weights, self.work / f"{name}.pt")
        gpu = torch.cuda.get_device_name() if self.device.type == "cuda" else ""
        stage = {
            **figures,
            "parameters": sum(w.numel() for w in model.parameters()),
            "seconds": round(time.monotonic() - self.start, 1),
            "device": gpu or f"{os.cpu_count()} CPU cores",
            "torch": str(torch.__version__),
        }
        (self.work / f"{name}.json").write_text(json.dumps(stage))

    def _load(self, name: str, model: nn.Module) -> None:
        weights = torch.load(self.work / f"{name}.pt", map_location="cpu", weights_only=True)
        model.load_state_dict(weights)
        model.to(self.device)

    def _record(self) -> dict[str, object]:
        """The content of training.json."""
        return {
            "date": datetime.date.today().isoformat(),
            "data": {
                "source": f"standard library of CPython {self.text.python}: source files, "
                "docstrings and pydoc_data topics",
                "licence": "PSF-2.0",
                "train_files": len(self.text.train_files),
                "held_out_files": len(self.text.held_out_files),
                "train_chats": len(self.text.train_chats),
                "held_out_modules": sorted(corpus.HELD_OUT),
            },
            "seed": self.recipe.seed,
            "aux_layers": list(target.AUX_LAYERS),
            "recipe": dataclasses.asdict(self.recipe),
            "stages": {
                name: json.loads((self.work / f"{name}.json").read_text())
                for name in ("target", "p-eagle", "eagle3")
            },
        }


def make_corpus(work: Path, stdlib: Path | None) -> None:
    """Write the corpus of a standard library to the work folder."""
    corpus.save(corpus.build(stdlib), work / "corpus.json.gz")


def main() -> None:
    """Run the named stages in order."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("stages", nargs="*", default=list(STAGES), choices=["corpus", *STAGES])
    parser.add_argument("--work", type=Path, default=Path(".tiny-work"))
    parser.add_argument("--out", type=Path, default=Path("model_catalog/peagle/tiny"))
    parser.add_argument("--stdlib", type=Path, help="default: the running Python's")
    parser.add_argument("--smoke", action="store_true", help="toy sizes, to try the code")
    options = parser.parse_args()
    if "corpus" in options.stages or not (options.work / "corpus.json.gz").exists():
        make_corpus(options.work, options.stdlib)
    stages = [stage for stage in options.stages if stage != "corpus"]
    if stages:
        training = Training(options.work, options.out, SMOKE if options.smoke else FULL)
        for stage in stages:
            training.run(stage)


STAGES: dict[str, Callable[[Training], None]] = {
    "target": Training.target,
    "p-eagle": Training.p_eagle,
    "eagle3": Training.eagle3,
    "export": Training.export,
}

if __name__ == "__main__":
    main()
