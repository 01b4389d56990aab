"""The result of a proof as a tag of the endpoint, so that other machines see it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from peagle.proof import Proof
from peagle.render.requests import PROOF_TAG

PREVIOUS_TAG = "peagle:previous"
"""Tag of an endpoint with the revision that served before, and its proof."""


def proof_tag(
    proof: Proof | None, fingerprint: str, now: float, key: str = PROOF_TAG
) -> dict[str, str]:
    """The tag: ``revision=... passed=yes length=3.41 drafts=220 floor=2.00 source=log time=...``;
    without a ``proof`` only the revision.

    A tag's value allows letters, digits, spaces and ``_.:/=+-@``. ``now`` is epoch seconds.
    """
    if proof is None:
        return {"Key": key, "Value": f"revision={fingerprint}"}
    fields = {
        "revision": fingerprint,
        "passed": "yes" if proof.passed else "no",
        "length": _number(proof.acceptance_length),
        "drafts": str(proof.drafts),
        "floor": _number(proof.floor),
        "source": proof.source,
        "time": datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds"),
    }
    text = " ".join(f"{key}={value}" for key, value in fields.items() if value)
    return {"Key": key, "Value": text}


def revision_in(tags: Mapping[str, str], key: str) -> str:
    """The fingerprint in that tag of an endpoint; empty without one."""
    return _fields(tags, key).get("revision", "")


def proof_in(tags: Mapping[str, str], fingerprint: str) -> Proof | None:
    """The proof of that revision in an endpoint's tags; ``None`` without one, or for a value that
    this version cannot read."""
    found = (_fields(tags, key) for key in (PROOF_TAG, PREVIOUS_TAG))
    return next((_proof(one) for one in found if one.get("revision") == fingerprint), None)


def _fields(tags: Mapping[str, str], key: str) -> dict[str, str]:
    words = (word.partition("=") for word in tags.get(key, "").split())
    return {name: value for name, _, value in words}


def _proof(fields: Mapping[str, str]) -> Proof | None:
    try:
        return Proof(
            acceptance_length=_read(fields.get("length")),
            drafts=int(fields["drafts"]),
            acceptance_per_position=(),
            floor=_read(fields.get("floor")),
            passed=fields["passed"] == "yes",
            # AWS's image has no counters: without a word about them, nothing may ask for them.
            source="counters" if fields.get("source") == "counters" else "log",
        )
    except (KeyError, ValueError):
        return None


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _read(text: str | None) -> float | None:
    return float(text) if text else None
