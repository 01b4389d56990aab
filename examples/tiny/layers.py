"""The layers of Llama in plain torch, named as in its checkpoints.

Shapes: B rows, T tokens, H hidden, h heads, d head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama-shaped model."""

    layers: int = 8
    hidden: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    mlp: int = 448
    vocab: int = 1024
    positions: int = 2048
    theta: float = 10_000.0
    eps: float = 1e-5


class Rope:
    """Cosines and sines [T, d] of given position ids [T]."""

    def __init__(self, shape: Shape, positions: Tensor) -> None:
        half = torch.arange(0, shape.head_dim, 2, device=positions.device, dtype=torch.float32)
        angles = positions[:, None].float() / shape.theta ** (half / shape.head_dim)
        self.cos = torch.cat([angles, angles], -1).cos()
        self.sin = torch.cat([angles, angles], -1).sin()

    def rotate(self, x: Tensor) -> Tensor:
        """Rotate q or k [B, h, T, d]."""
        first, second = x.chunk(2, -1)
        flipped = torch.cat([-second, first], -1)
        return (x * self.cos + flipped * self.sin).to(x.dtype)


class Attention(nn.Module):
    """Causal grouped-query attention."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        rows, tokens, _ = x.shape
        group = self.shape.heads // self.shape.kv_heads

        def split(y: Tensor) -> Tensor:
            return y.view(rows, tokens, -1, self.shape.head_dim).transpose(1, 2)

        q = rope.rotate(split(self.q_proj(x)))
        k = rope.rotate(split(self.k_proj(x))).repeat_interleave(group, 1)
        v = split(self.v_proj(x)).repeat_interleave(group, 1)
        context = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.o_proj(context.transpose(1, 2).reshape(rows, tokens, -1))
        return out


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.mlp, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.mlp, bias=False)
        self.down_proj = nn.Linear(shape.mlp, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


def norm(shape: Shape) -> nn.RMSNorm:
    """RMSNorm over the hidden width."""
    return nn.RMSNorm(shape.hidden, eps=shape.eps)


class Block(nn.Module):
    """One Llama layer, [B, T, H] -> [B, T, H]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = norm(shape)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = norm(shape)
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, rope: Rope) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


def initialize(model: nn.Module, layers: int) -> None:
    """Normal weights with deviation 0.02, scaled down by depth where they add to the residual."""
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            deep = name.endswith(("o_proj.weight", "down_proj.weight"))
            nn.init.normal_(weight, std=0.02 / (2 * layers) ** 0.5 if deep else 0.02)
