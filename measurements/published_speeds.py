"""Published speeds of other people's engines, to compare the performance model with.

No constant is fitted to them. What a publication leaves open is assumed, as noted per source: the
prompt and answer lengths, and that all requests run for the whole time. So an error here is that of
the model and of the assumptions together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from measurements.speed_rows import case_of
from peagle.catalog.schema import Architecture, AttentionGroup
from peagle.fit.estimate import FitCase
from peagle.fit.weights import TargetModel

QWEN3_32B = Architecture(
    class_name="Qwen3ForCausalLM",
    hidden_size=5120,
    layers=64,
    query_heads=64,
    attention=(AttentionGroup(kind="full", layers=64, kv_heads=8, head_dim=128),),
    vocab_size=151936,
    intermediate_size=25600,
    max_positions=40960,
)
"""config.json of Qwen/Qwen3-32B, which the catalogue does not have."""


@dataclass(frozen=True)
class Published:
    """One published speed: output tokens per second of all requests, with this acceptance."""

    source: str
    pair: str
    gpu: str
    drafter: str | None
    k: int
    load: int
    length: float
    tokens_per_second: float
    prompt: int = 128
    answer: int = 1024
    tensor_parallel_size: int = 1
    quantization: str | None = None
    first: float | None = None
    between: float | None = None

    @property
    def group(self) -> str:
        """The source without its task, and whether the batch was full throughout."""
        source = self.source.partition(",")[0]
        if self.source in _NOT_FULL and self.load > MOST_FULL:
            return f"{source}, {self.gpu}, above {MOST_FULL} requests"
        return f"{source}, {self.gpu}"

    @property
    def setting(self) -> str:
        """``p-eagle K=7``, ``target alone``."""
        return f"{self.drafter} K={self.k}" if self.drafter else "target alone"

    @property
    def place(self) -> str:
        """What the rows of a choice share."""
        return f"{self.source}: {self.pair} on {self.gpu}, {self.load}"

    @property
    def low(self) -> float:
        """The slowest repetition: only one is known."""
        return self.tokens_per_second

    def case(self) -> FitCase:
        """The engine of this row."""
        if self.pair == "Qwen/Qwen3-32B":
            case = case_of("Qwen/Qwen3-8B", self.gpu, None, 0, self.tensor_parallel_size)
            case = case._replace(target=TargetModel(QWEN3_32B))
        else:
            case = case_of(self.pair, self.gpu, self.drafter, self.k, self.tensor_parallel_size)
        if self.quantization:
            target = replace(case.target, quantization=self.quantization, checkpoint_bytes=None)
            case = case._replace(target=target)
        return case


MOST_FULL = 16
"""Requests that the 80 or 164 prompts of the blog keep running for most of the time."""

_LOADS = (1, 2, 4, 8, 16, 32, 64)
_20B, _120B = "openai/gpt-oss-20b", "openai/gpt-oss-120b"
_CODER, _8B, _32B = "Qwen/Qwen3-Coder-30B-A3B-Instruct", "Qwen/Qwen3-8B", "Qwen/Qwen3-32B"

# vllm.ai/blog/p-eagle, 2026-03-13: one B200, answers of at most 2,048 tokens, of assumed 1,024.
# Speeds are read off figures; from 32 requests on the 80 or 164 prompts do not fill the batch.
_BLOG = {
    "MT-Bench": (
        (None, 0, 1.0, (460, 850, 1550, 2550, 4120, 6430, 9660)),
        ("eagle3", 3, 2.70, (630, 1240, 2250, 4210, 6740, 10570, 14020)),
        ("p-eagle", 7, 3.70, (980, 1590, 3070, 5430, 8660, 11490, 14670)),
    ),
    "HumanEval": (
        (None, 0, 1.0, (480, 760, 1260, 2270, 3890, 6460, 10150)),
        ("eagle3", 3, 2.65, (590, 1090, 2100, 3890, 6290, 9710, 14910)),
        ("p-eagle", 7, 3.94, (920, 1710, 3050, 5230, 8200, 13290, 18270)),
    ),
    "SPEED-Bench": (
        (None, 0, 1.0, (456, 820, 1250, 2170, 3820, 7050, 11080)),
        ("eagle3", 3, 2.24, (507, 890, 1920, 3570, 6260, 10410, 16700)),
        ("p-eagle", 7, 3.38, (858, 1560, 2900, 5280, 8880, 12670, 20850)),
    ),
}
_NOT_FULL = frozenset(f"vllm.ai/blog/p-eagle, {task}" for task in _BLOG)
_FIGURES = tuple(
    Published(f"vllm.ai/blog/p-eagle, {task}", _20B, "B200", drafter, k, load, length, speed)
    for task, series in _BLOG.items()
    for drafter, k, length, speeds in series
    for load, speed in zip(_LOADS, speeds, strict=True)
)

_PAPER = "arXiv 2602.01469, GSM-8K"
_SUITE = "SageMaker suite, chat"
_SAGEMAKER = "SageMaker blog of 2026-06-16, HumanEval"
_OTHERS = (
    Published("vLLM pull request 32887, MT-Bench", _120B, "B200", None, 0, 1, 1.0, 369),
    Published("vLLM pull request 32887, MT-Bench", _120B, "B200", None, 0, 8, 1.0, 1783),
    # Acceptance of the paper's table, K=7.
    Published(_PAPER, _20B, "H200", "p-eagle", 7, 2, 4.0, 1320),
    Published(_PAPER, _20B, "H200", "p-eagle", 7, 4, 4.0, 2147),
    Published(_PAPER, _20B, "H200", "eagle3", 7, 2, 3.9, 968),
    Published(_PAPER, _20B, "H200", "eagle3", 7, 4, 3.9, 1696),
    # K=11; the length follows from the card's 6.66 at K=10.
    Published(_SAGEMAKER, _CODER, "B200", None, 0, 1, 1.0, 294, quantization="fp8"),
    Published(_SAGEMAKER, _CODER, "B200", "p-eagle", 11, 1, 6.87, 1167, quantization="fp8"),
    # Per user at one request; K=7 with the length of math_reasoning.
    Published("Red Hat, 2026-07-28, GSM-8K", _8B, "A100", None, 0, 1, 1.0, 88),
    Published("Red Hat, 2026-07-28, GSM-8K", _8B, "A100", "p-eagle", 7, 1, 3.82, 258),
)

# Tokens/s from $ per million tokens at the run's price per hour; 512 + 512 tokens are assumed.
_HOSTS = (
    Published(_SUITE, _32B, "RTX PRO 6000 SE", None, 0, 32, 1.0, 4.20 / 3600 / 2.17e-6, 512, 512),
    Published(_SUITE, _32B, "L40S", None, 0, 32, 1.0, 13.12 / 3600 / 5.48e-6, 512, 512, 4),
    Published(_SUITE, _32B, "A10G", None, 0, 32, 1.0, 7.09 / 3600 / 4.58e-6, 512, 512, 4),
    Published(_SUITE, _20B, "RTX PRO 6000 SE", None, 0, 32, 1.0, 3102, 512, 512),
    # Acceptance of MT-Bench at K=3.
    Published(_SUITE, _20B, "RTX PRO 6000 SE", "eagle3", 3, 32, 2.70, 3720, 512, 512),
)

PUBLISHED = (*_FIGURES, *_OTHERS, *_HOSTS)
