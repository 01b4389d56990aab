"""SHA-256 of plans and of every file that ``peagle render`` writes: ``digests.json``.

A plan is what ``peagle plan --json`` prints; beside the digest stand the digests of its keys, so
that a difference says where it is. A format that cannot express a plan has the error's code.
"""

import hashlib
import json
import shlex
from pathlib import Path
from typing import Any

from tests.golden.recordings import environment
from tests.support import in_process, with_keys

ROOT = Path(__file__).parents[2]
_IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/peagle-tiny@sha256:" + "a" * 64
PLANS = {
    "tiny": "tiny",
    "tiny-baked": f"tiny --image {_IMAGE} --baked-weights",
    "gpt-oss-20b": "gpt-oss-20b",
    "gpt-oss-20b-plain": "gpt-oss-20b --no-speculation",
    "gpt-oss-20b-chat": "gpt-oss-20b --workload chat --slo ttft=0.5,itl=0.02 --concurrency 16",
    "gpt-oss-20b-batch": "gpt-oss-20b --requests 1m --within 8h",
    "gpt-oss-20b-scaled": "gpt-oss-20b --min-instances 1 --max-instances 4 --observe --ttl 8h",
    "gpt-oss-120b-on-b200": "gpt-oss-120b --instance-type ml.p6-b200.48xlarge --region us-west-2",
    "gpt-oss-120b-streamed": "gpt-oss-120b --model-source s3://my-bucket/gpt-oss-120b/target/"
    " --drafter s3://my-bucket/gpt-oss-120b/drafter/",
    "qwen3-coder-30b": "qwen3-coder-30b --region eu-central-1 --concurrency 32",
    "qwen3-8b-from-s3": "qwen3-8b --model-source s3://my-bucket/qwen3-8b"
    " --drafter s3://my-bucket/head --instance-count 2",
    "gemma-4-31b": "gemma-4-31b",
    "tiny-copies": "tiny --instance-type ml.g5.12xlarge --copies 4",
    "too-much": "gpt-oss-20b --instance-type ml.g4dn.xlarge --k 11 --vllm 0.20.1",
}
"""A name -> the pair and the options of ``peagle plan``."""
KEYS = {"gpt-oss-120b-streamed": {"weights_by": "stream"}}
"""A name -> its keys of ``peagle.yaml``."""
RENDERED = ("tiny", "tiny-baked", "gpt-oss-20b-scaled", "qwen3-8b-from-s3", "tiny-copies")
FORMATS = (
    "cdk", "cloudformation", "compose", "dockerfile", "hyperpod", "kserve", "terraform",
)  # fmt: skip


def record(folder: Path) -> dict[str, Any]:
    """The digests of the plans, and of each file by plan and format."""
    plans = {name: _plan(folder, name) for name in PLANS}
    rendered = {
        f"{name}, {kind}": _rendered(folder, kind, PLANS[name], folder / f"{name}-{kind}")
        for name in RENDERED
        for kind in FORMATS
    }
    return {"plans": plans, "rendered": rendered}


def _plan(folder: Path, name: str) -> dict[str, Any]:
    words: tuple[str, ...] = ("plan", *shlex.split(PLANS[name]), "--json")
    if keys := KEYS.get(name):
        words = with_keys(folder, words, **keys)
    done = _peagle(folder, shlex.join(words))
    try:
        plan = done.document
    except ValueError:
        return {"code": done.code, "error": json.loads(done.error)["error"]["code"]}
    keys = {key: _digest(json.dumps(value).encode()) for key, value in plan.items()}
    return {"code": done.code, "all": _digest(done.out.encode()), **keys}


def _rendered(folder: Path, kind: str, line: str, output: Path) -> dict[str, Any]:
    done = _peagle(folder, f"render {kind} {line} --output {output.name} --json")
    if done.code:
        return {"code": done.code, "error": json.loads(done.error)["error"]["code"]}
    files = sorted(path for path in output.rglob("*") if path.is_file())
    return {
        path.relative_to(output).as_posix(): _digest(_without_checkout(path.read_bytes()))
        for path in files
        if "peagle_serve" not in path.parts  # the entrypoint's own source
    }


def _peagle(folder: Path, line: str) -> Any:
    return in_process(*shlex.split(line), environment=environment(folder), folder=folder)


def _without_checkout(content: bytes) -> bytes:
    """The folders of the tiny pair's weights are below the checkout."""
    return content.replace(str(ROOT).encode(), b"CHECKOUT")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
