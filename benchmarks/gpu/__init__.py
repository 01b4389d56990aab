"""What real vLLM takes and gives on a GPU: memory for every pair, and speed by K and load.

Nothing is downloaded: the engine gets a ``config.json`` of the real geometry (``tests/geometry``)
and weights drawn at random (``--load-format dummy``), so kernels, memory and start-up are those of
the real model, and what it says is noise. Two scripts, run from the root of the repository on a
host with vLLM and a GPU:

* ``python -m benchmarks.gpu.memory --out FOLDER`` starts vLLM once per row and writes what it
  counted: weights, activations, CUDA graphs, the cache and its groups.
* ``python -m benchmarks.gpu.speed --out FOLDER`` generates with every drafter and K, at several
  loads, with vLLM's synthetic rejection sampler set to the published acceptance.

Each adds ``rows.jsonl`` to the folder as it goes, so that a broken run leaves what it has.
``--collect FOLDER...`` then needs no GPU: memory.py puts the rows into its evidence file, speed.py
makes one of them (``--evidence FILE``).

The dummy loader never learns which tensors a head brings along, so vLLM would share the target's
embedding and output matrices with every head. ``geometry.OWN_TENSORS`` says what the published
heads bring, and the probe makes the engine keep exactly those.
"""
