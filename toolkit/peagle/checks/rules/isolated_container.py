"""Weights that a container without a network would have to download.

Network isolation leaves the container only what SageMaker mounts or the image contains.
"""

from peagle.case import Case
from peagle.checks.registry import Findings, Rule
from peagle.errors import Fix
from peagle.text import json_object
from peagle_serve.contract import HUB_ID, HUB_MODEL, MODEL, SPECULATION, is_s3_uri

RULE = Rule("isolated-container", about="load", vllm_notices="at start")


def check(case: Case) -> Findings:
    if not case.network_isolation:
        return
    drafter = json_object(case.environment.get(SPECULATION)).get("model")
    models = {
        "target": case.environment.get(MODEL) or case.environment.get(HUB_MODEL),
        "drafter": drafter,
    }
    for part, place in models.items():
        if not isinstance(place, str):
            continue
        if is_s3_uri(place):
            message = f"the engine streams the {part} from {place}, which it cannot reach"
            fix = "mount the weights with --weights-by mount, or omit --network-isolation"
            yield RULE.error("network_isolation", message, fix)
        elif HUB_ID.fullmatch(place):
            message = f"the engine downloads the {part} from the Hub ({place}), out of its reach"
            yield RULE.error(
                "network_isolation",
                message,
                Fix(
                    "copy the pair to S3 and use --model-source, or use an image with weights",
                    ("peagle", "weights", "sync", "PAIR", "s3://BUCKET/PREFIX"),
                ),
            )
