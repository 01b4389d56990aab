"""The target: its checkpoint, its quantization, and what vLLM knows about its class."""

from __future__ import annotations

import re
from collections.abc import Iterable

from peagle.case import Case
from peagle.checkpoints.architecture import (
    EXPERT_PARALLEL,
    division_problem,
    divisions,
    is_expert_parallel,
    list_head_sizes,
)
from peagle.checkpoints.entries import is_from_checkpoint
from peagle.checks.facts import is_aws_image, needs_vocabulary
from peagle.checks.registry import Findings, error, note, rule, warning
from peagle.errors import Fix
from peagle.vllm.versions import architectures, compare
from peagle_serve.contract import HUB_ID, MODEL, VOCABULARY_FILE, VOCABULARY_VARIABLE, is_s3_uri


@rule("target-not-in-catalogue", about="target", vllm_notices="never")
def target_not_in_catalogue(case: Case) -> Findings:
    """A target that the catalogue does not have, so that only its checkpoint is known."""
    read, target = case.target_checkpoint, case.target
    if read is None or not is_from_checkpoint(target):
        return
    sizes = "config.json and the weight headers" if read.tensors else "config.json alone"
    unknown = "licence, oldest vLLM, default drafter and the settings of its model card"
    message = f"{target.id} is not in the catalogue; sizes are from {sizes}; unknown: {unknown}"
    command = ("peagle", "catalog", "init", read.location)
    yield note("target", message, Fix("to state them, write a catalogue entry", command))


@rule("model-not-served", about="version", vllm_notices="at start")
def model_not_served(case: Case) -> Findings:
    """A target whose class this vLLM version does not have.

    vLLM removed it or never had it, and its class in transformers does not allow vLLM's
    attention (_raise_for_unsupported of model_executor/models/registry.py).
    """
    name, version = case.architecture.class_name, case.runtime.vllm
    table = architectures()
    last = table["not_served"].get(name)
    message = f"vLLM {version} does not serve {name}"
    if last and compare(version, last) > 0:
        message = f"{message}: the last version that does is {last}"
        yield error("target", message, f"use --vllm {last}, or another model")
    elif last == "" and compare(version, table["versions"]["vllm"]) <= 0:
        yield error("target", message, "use a model of another architecture")


@rule("target-differs", about="target", vllm_notices="never")
def target_differs(case: Case) -> Findings:
    """A checkpoint that is not the target of the pair.

    vLLM serves any model. Memory, context and head of the plan are for the pair's target: the
    20B and 120B models of one family differ in a few values of config.json.
    """
    checkpoint, target = case.target_checkpoint, case.target
    if checkpoint is None:
        return
    if case.target_read is None:
        message = f"{checkpoint.location} holds a draft head, not the model {target.id}"
        yield error("target", message, "pass the folder of the target")
        return
    read, listed = (
        {
            "class": shape.class_name,
            "hidden size": shape.hidden_size,
            "layers": shape.layers,
            "attention heads": shape.query_heads,
            "vocabulary": shape.vocab_size,
            "experts": shape.experts,
            "key-value heads": tuple(sorted({group.kv_heads for group in shape.attention})),
        }
        for shape in (case.architecture, target.architecture)
    )
    different = [name for name in read if read[name] != listed[name]]
    if not different:
        return
    differences = ", ".join(f"{name} {read[name]}, not {listed[name]}" for name in different)
    message = f"{checkpoint.location} is not {target.id}: {differences}"
    if not case.own_target:
        fix = Fix("correct the catalogue file or its weights; plans use the values of the file")
    else:
        head = ("--drafter", case.head.location) if case.head else ()
        sentence = f"pass the location of {target.id}, or check this model by itself"
        fix = Fix(sentence, ("peagle", "check", checkpoint.location, *head))
    yield error("target", message, fix)


_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d{1,9})\.")
_OTHER_TOWERS = ("vision", "visual", "audio", "mtp", "encoder.")


@rule("target-incomplete", about="target", vllm_notices="at start")
def target_incomplete(case: Case) -> Findings:
    """A target whose weights lack layers."""
    read = case.target_read
    absent = set(range(case.architecture.layers)) - parse_layers(read.tensors or () if read else ())
    if read is not None and read.tensors and absent:
        shown = ", ".join(map(str, sorted(absent)[:3]))
        fix = "copy the model again: its index, a shard or config.json comes from another model"
        yield error("target", f"the weights at {read.location} lack layers {shown}", fix)


def parse_layers(tensors: Iterable[str]) -> set[int]:
    """The numbers of the decoder layers among these names."""
    decoder = (name for name in tensors if not any(part in name for part in _OTHER_TOWERS))
    return {int(match[1]) for match in map(_LAYER.search, decoder) if match}


@rule("cache-estimated", about="target", vllm_notices="never")
def cache_estimated(case: Case) -> Findings:
    """A target with layers whose cache vLLM accounts for in a way that the memory model does not
    know."""
    unknown = case.architecture.unknown_cache
    if unknown:
        message = (
            f"how vLLM caches layers of {case.target.id} is not known ({unknown}): each layer "
            "counts as full attention, the largest cache"
        )
        fix = 'compare with "GPU KV cache size" in vLLM\'s log before you choose a smaller instance'
        yield warning("target", message, fix)


@rule("quantization-block", about="load", vllm_notices="at start")
def quantization_block(case: Case) -> Findings:
    """Tensor parallelism over a number of GPUs that cuts a block of quantized weights, an expert
    or a recurrent head in two."""
    shape, size = case.architecture, case.tensor_parallel_size
    whole_experts = is_expert_parallel(case.settings)
    gpus = max(size, case.instance.gpu_count if case.instance else size)
    for tried in (size, *(s for s in list_head_sizes(shape, gpus) if s > size)):
        problem = division_problem(shape, tried, whole_experts)
        if shape.query_heads % tried or problem is None:  # tensor-parallel reports the heads
            continue
        # Where vLLM refuses every size, divisions still has the smallest.
        works = [
            str(s)
            for s in divisions(shape, gpus, whole_experts)
            if division_problem(shape, s, whole_experts) is None
        ]
        message = f"{tried} GPUs cannot share the weights of {case.target.id}: {problem}"
        fix = "use weights with another quantization, or unquantized ones"
        if works:
            fix = f"use a tensor-parallel size that works ({', '.join(works)})"
        if not whole_experts and division_problem(shape, tried, True) is None:
            fix += f", or give each GPU whole experts with --set {EXPERT_PARALLEL}=true"
        report = error if tried == size else note
        yield report("tensor_parallel_size", message, fix)
        return


@rule("vocabulary-download", about="target", vllm_notices="at start")
def vocabulary_download(case: Case) -> Findings:
    """A target whose vocabulary the engine downloads at start, next to its weights."""
    model, environment = case.options.environment.get(MODEL, ""), case.options.environment
    if not (needs_vocabulary(case.target.architecture) and model) or case.on_cpu:
        return
    if VOCABULARY_VARIABLE in environment:
        return
    host = "openaipublic.blob.core.windows.net"
    message = f"the engine downloads GPT-OSS's vocabulary from {host} at start"
    beside = f"without egress put {VOCABULARY_FILE} next to the weights (weights sync does)"
    is_own = case.options.image is not None and not is_aws_image(case.options.image, case.runtimes)
    if HUB_ID.fullmatch(model):
        yield note("target", message, "allow that host in addition to the hub's")
    elif is_s3_uri(model):
        fix = "mount the weights with weights_by mount, or build an image with weights"
        yield warning("target", f"{message}: weights that are streamed cannot carry it", fix)
    elif is_own:
        report = warning if case.options.network_isolation else note
        yield report("target", f"{message}, unless it is next to the weights", beside)
    else:
        fix = f"{beside} and add --env {VOCABULARY_VARIABLE}={model}"
        yield warning("target", message, fix)
