"""Plans of every shape: mounts, number of instances, drafter."""

from functools import cache
from typing import Any

from peagle.catalog import load_catalog
from peagle.planning import Options, Plan, make_plan
from peagle.workload import Slo

ROLE = "arn:aws:iam::123456789012:role/peagle"
BUCKET = "my-models"
CATALOG = load_catalog()
SHAPES: dict[str, dict[str, Any]] = {
    "from-hub": {"pair": "gpt-oss-20b"},
    "uploaded": {"pair": "tiny", "name": "tiny"},
    "own-folder": {"pair": "gpt-oss-20b", "drafter": '/data/my head\'s "best"'},
    "two-instances": {"pair": "qwen3-8b", "instance_count": 2, "region": "eu-west-1"},
    "scaled": {"pair": "gpt-oss-20b", "min_instances": 2, "max_instances": 5, "concurrency": 32},
    "one-prefix": {"pair": "gpt-oss-120b", "drafter": "s3://heads/gpt-oss-120b"},
    "two-prefixes": {"pair": "qwen3-8b", "model_source": "s3://models/qwen3-8b",
     "drafter": "s3://heads/qwen3-8b"},
    "streamed": {"pair": "gpt-oss-120b", "model_source": "s3://models/gpt-oss-120b/target/",
     "drafter": "s3://models/gpt-oss-120b/drafter/", "weights_by": "stream"},
    "streamed-and-uploaded": {"pair": "gpt-oss-20b", "model_source": "s3://models/gpt-oss-20b",
     "drafter": "/data/head", "weights_by": "stream"},
    "rolled-out": {"pair": "gpt-oss-20b", "instance_count": 4, "slo": Slo(ttft=0.5),
     "rollout": "canary"},
    "rolled-out-at-once": {"pair": "tiny", "name": "tiny", "rollout": "all-at-once"},
    "observed": {
        "pair": "gpt-oss-20b",
        "observe": True,
        "alarm_topic": "arn:aws:sns:us-east-1:123456789012:on-call",
        "capture_retention": 0,
        "capture_data": "s3://peagle-captured/gpt-oss",
        "capture_percent": 5,
        "capture_kms_key": "arn:aws:kms:us-east-1:123456789012:alias/peagle",
    },
    "no-ami": {"pair": "gemma-4-31b", "instance_type": "ml.g7e.2xlarge"},
    "no-speculation": {"pair": "gpt-oss-20b", "speculation": False},
    "draftless": {"pair": "gpt-oss-20b+ngram", "name": "a" * 63},
    "company": {
        "pair": "tiny",
        "subnets": ("subnet-0a1b2c3d", "subnet-0a1b2c3d4e5f60718"),
        "security_groups": ("sg-0a1b2c3d",),
        "network_isolation": True,
        "kms_key": "arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab",
        "tags": {"cost center": "R+D", "team": "ml=a:b/c@d", "empty": "", "ä": "漢"},
        "name_prefix": "acme-",
    },
    "baked": {"pair": "tiny", "name": "tiny",
     "image": f"123456789012.dkr.ecr.us-east-1.amazonaws.com/peagle-tiny@sha256:{'a' * 64}",
     "baked_weights": True},
}  # fmt: skip
BUILT = [shape for shape in SHAPES if shape != "baked"]
"""The shapes of which an image can be built; the others name an existing image."""
ALL_PAIRS = [
    f"{target.short_name}+{drafter.name}"
    for target in CATALOG.targets.values()
    for drafter in target.drafters
]


@cache
def plan_of(shape: str) -> Plan:
    """The plan of one of the shapes."""
    return make_plan(Options(**SHAPES[shape]), CATALOG)


@cache
def limited() -> Plan:
    """A plan whose endpoint is deleted after 8 hours."""
    return make_plan(Options(pair="gpt-oss-20b", ttl=8 * 3600), CATALOG)


@cache
def to_zero() -> Plan:
    """A plan whose copies scale to zero."""
    pair, kind = "gpt-oss-20b", "ml.g6.12xlarge"
    options = Options(pair=pair, instance_type=kind, copies=4, max_instances=2, scale_to_zero=True)
    return make_plan(options, CATALOG)


@cache
def plan_for(pair: str) -> Plan:
    """The plan for a pair of the bundled catalogue, on a type on which each of them fits: to rank
    all types takes much longer, and ``test_catalog_bundled_plans.py`` does."""
    return make_plan(Options(pair=pair, instance_type="ml.g7e.2xlarge"), CATALOG)


def filled(value: Any) -> Any:
    """Requests with their placeholders replaced, as in an applied plan."""
    if isinstance(value, dict):
        return {key: filled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item) for item in value]
    if isinstance(value, str):
        return value.replace("${ExecutionRoleArn}", ROLE).replace("${ModelBucket}", BUCKET)
    return value
