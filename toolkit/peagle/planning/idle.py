"""GPUs of the planned instances that no engine uses, and the plan that uses them."""

from __future__ import annotations

from collections.abc import Iterator

from peagle.findings import Finding, note, warning
from peagle.planning.candidates import SAME_COST_FACTOR, Candidate, rank
from peagle.planning.copies import without_copies
from peagle.planning.evaluation import CandidateEvaluator
from peagle.planning.options import AUTO
from peagle.text import format_usd

_CHEAPEST = "leave --instance-type out to get the cheapest type that fits"


def idle_gpus(evaluator: CandidateEvaluator, candidate: Candidate) -> Iterator[Finding]:
    """A warning on idle GPUs that names the better plan for the same type, or a note where none is
    known to be better; a note where all work, and copies cost clearly less per token."""
    idle, options = candidate.idle_gpus, evaluator.options
    better = _with_copies(evaluator, candidate)
    fix = f"use --copies {better.copies} (an inference component)" if better else ""
    if fix and (excluding := without_copies(options)):
        fix = f"{fix}, without {' and '.join(excluding)}"
    if not idle:
        if better is not None and _costs_clearly_less(better, candidate):
            message = f"{_described(better)}, {_speed(candidate)} as planned"
            yield note("copies-cost-less", "copies", message, fix)
        return
    message = (
        f"{idle} of the {candidate.fit.gpu_count} GPUs of {candidate.instance.type} "
        f"{'is' if idle == 1 else 'are'} idle but billed"
    )
    if better is not None:
        message += f"; {_described(better)}, {_speed(candidate)} as planned"
        yield warning("gpus-idle", "instance_type", message, fix)
    elif options.instance_type is not None:
        yield note("gpus-idle", "instance_type", message, _CHEAPEST)
    else:
        message += "; the plan is the best for this load nevertheless"
        yield note("gpus-idle", "instance_type", message, "")


def _costs_clearly_less(better: Candidate, candidate: Candidate) -> bool:
    """Whether it costs less per token by more than the error of an estimate."""
    ours, theirs = candidate.usd_per_million_tokens, better.usd_per_million_tokens
    return ours is not None and theirs is not None and theirs * SAME_COST_FACTOR < ours


def _with_copies(evaluator: CandidateEvaluator, candidate: Candidate) -> Candidate | None:
    """The best with copies on the same type, if that is known to be better than the candidate. A
    number of copies that the user chose stays unquestioned while it leaves no GPU idle."""
    known = candidate.tokens_per_second is not None and candidate.fit.gpu_count > 1
    chosen = evaluator.options.copies
    is_questioned = chosen is None or (chosen != AUTO and candidate.idle_gpus > 0)
    if not is_questioned or not known:
        return None
    allowed = evaluator.with_options(copies=AUTO, capture_data=None, rollout=None)
    found = allowed.candidate(candidate.instance)
    if found.tokens_per_second is None or found.copies == 1:
        return None
    ranked = rank(evaluator.options, (candidate, found))
    return found if ranked[0] is found else None


def _described(better: Candidate) -> str:
    """``4 copies of the engine with 2 GPUs each would generate 900 tokens/s ...``."""
    size = better.fit.tensor_parallel_size
    gpus = "1 GPU" if size == 1 else f"{size} GPUs"
    return f"{better.copies} copies of the engine with {gpus} each generate {_speed(better)}"


def _speed(one: Candidate) -> str:
    """The speed, and the cost per token where it is known."""
    usd = one.usd_per_million_tokens
    cost = "" if usd is None else f" at {format_usd(usd)} per million tokens"
    return f"{one.tokens_per_second:,.0f} tokens/s{cost}"
