"""Dummy weights without biases: a token's experts depend on the token."""

from __future__ import annotations

from types import SimpleNamespace

from measurements.gpu.dummy_weights import remove_biases


class Parameter:
    """A parameter of a model, as far as ``dummy_weights`` touches it."""

    def __init__(self) -> None:
        self.value = 0.001
        self.data = SimpleNamespace(zero_=self.zero)

    def zero(self) -> None:
        self.value = 0.0


def test_biases_of_routers_attention_and_experts_are_zero_and_weights_stay() -> None:
    names = ("layers.0.mlp.router.bias", "layers.0.attn.qkv_proj.bias", "experts.w13_bias")
    weights = ("layers.0.mlp.router.weight", "layers.0.attn.sinks", "norm.weight")
    parameters = {name: Parameter() for name in (*names, *weights)}
    remove_biases(SimpleNamespace(named_parameters=parameters.items))
    zero = [name for name, parameter in parameters.items() if not parameter.value]
    assert zero == list(names)
