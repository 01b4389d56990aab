"""GPU memory by vLLM's own accounting: weights, activations, KV cache. Pure."""
