"""What real vLLM takes and gives on a GPU: memory, speed by K and load, and warm starts.

Nothing is downloaded there: the engine gets a ``config.json`` of the real geometry
(``tests/geometry``) and weights drawn at random (``--load-format dummy``), so kernels, memory and
start-up are those of the real model, and what it says is noise. Run from the root of the
repository on a host with vLLM and a GPU:

* ``python -m benchmarks.gpu.memory`` starts vLLM once per row and writes what it counted: weights,
  activations, CUDA graphs, the cache and its groups.
* ``python -m benchmarks.gpu.speed`` generates with every drafter and K, at several loads, with
  vLLM's synthetic rejection sampler set to the published acceptance.
* ``python -m benchmarks.gpu.warm`` starts ``containers/serve`` cold, with kept caches, and from an
  artefact, on this machine and on a fresh one.

Each adds to its results as it goes, so that a broken run leaves what it has, and ``--collect`` (a
step ``collect`` of warm) makes the evidence of them without a GPU.

For a host without network and for a short time:

* ``carry`` brings vLLM there in pieces: ``engine/<version>/`` says what travels and what the host
  has, ``needs`` checks every requirement against that, ``imports`` tries them all.
* ``lease`` is the plan: every call in order, with what travels, its command and its seconds.
  ``steps`` runs memory and speed within their seconds, and hands their rows over as they come.

The dummy loader never learns which tensors a head brings along, so vLLM would share the target's
embedding and output matrices with every head. ``geometry.OWN_TENSORS`` says what the published
heads bring, and the probe makes the engine keep exactly those.
"""
