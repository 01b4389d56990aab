"""Measurements of vLLM on a GPU: memory, speed by K and load, and warm starts.

The engine gets a ``config.json`` with the real geometry of a pair (``model_catalog/configs``) and
random weights (``--load-format dummy``): kernels, memory and start-up are those of the real model,
its output is noise, and nothing is downloaded. Run from the root of the repository, on a host with
a GPU and vLLM; ``measurements/README.md`` has the commands:

* ``python -m measurements.gpu.memory`` starts vLLM once per setting and records its memory:
  weights, activations, CUDA graphs, the KV cache and its groups.
* ``python -m measurements.gpu.speed`` generates with every drafter and K at several loads, with
  vLLM's synthetic rejection sampler set to published acceptance rates.
* ``python -m measurements.gpu.warm`` starts ``peagle_serve`` cold, with existing caches, and
  from an artifact, on this machine and on a fresh one.

Each appends its results as it goes, so an interrupted run keeps what it measured, and collects
them into an evidence file without a GPU.

The dummy loader does not know which tensors a head's checkpoint contains, so vLLM would share the
target's embedding and output matrix with every head. ``geometry.OWN_TENSORS`` lists what the
published heads contain, and the probe makes the engine keep exactly those tensors.
"""
