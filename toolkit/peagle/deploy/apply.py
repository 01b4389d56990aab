"""Deploy: what is there, what must change, the steps in order, proof, and tidying up.

change_of      nothing | prove | create | update     from the record and what lives
apply          weights -> model -> configuration -> endpoint -> in service
prove          accepted drafts, or NotProved: the endpoint stays and is called Unproved
tidy           what only the earlier plan needed goes
"""

from __future__ import annotations

from typing import Literal

from peagle.aws import sagemaker as endpoints
from peagle.aws.sagemaker import BROKEN, Endpoint
from peagle.deploy import steps
from peagle.deploy.context import Work
from peagle.deploy.desired import Wanted
from peagle.deploy.destroy import remove_resource
from peagle.deploy.proof import prove_endpoint, require
from peagle.deploy.state import Deployment, Generation
from peagle.errors import PeagleError

Change = Literal["nothing", "prove", "create", "update"]


def change_of(record: Deployment | None, live: Endpoint | None, wanted: Wanted) -> Change:
    """What deploying ``wanted`` would do."""
    if record is None or live is None or live.status in (*BROKEN, "Deleting"):
        return "create"
    if wanted.config_name not in (live.config, live.pending_config):
        return "update"
    if live.status == "Creating":
        return "create"
    if live.status != "InService":
        return "update"
    serving = record.serving
    if serving is None or serving.fingerprint != wanted.fingerprint or record.wanted:
        return "prove"
    return "nothing" if serving.proof and serving.proof.passed else "prove"


def deploy(work: Work, change: Change, wanted: Wanted, wait: bool = True) -> None:
    """Make the change, prove what came of it, and tidy up. Raises what ``apply`` and ``prove`` do.

    Without ``wait`` it ends when the endpoint is asked for; the next deploy does the rest.
    """
    if change != "nothing":
        apply(work, wanted, wait)
        if wait:
            prove(work, wanted)
    if wait:
        tidy(work, wanted)


def apply(work: Work, wanted: Wanted, wait: bool = True) -> None:
    """Bring ``wanted`` into service. Raises what a step raises, and notes it in the record.

    Every step may be repeated, so the same call continues what was interrupted.
    """
    work.change(wanted=_as_known(work.record, wanted.generation), failure=None)
    try:
        steps.upload_weights(work, wanted)
        steps.create_model(work, wanted)
        steps.create_config(work, wanted)
        steps.put_endpoint(work, wanted)
        if wait:
            steps.wait_in_service(work, wanted)
    except PeagleError as error:
        work.change(failure=str(error))
        raise


def prove(work: Work, wanted: Wanted) -> None:
    """Prove that what is in service speculates; raise NotProved if it does not.

    Either way the generation serves from now on.
    """
    work.say("Proving", f"{len(wanted.plan.proof.prompts)} prompts")
    _now_serving(work, wanted.generation)
    try:
        proved = prove_endpoint(work.aws, wanted.plan, work.record.name)
        _now_serving(work, wanted.generation.model_copy(update={"proof": proved}))
        require(proved)
    except PeagleError as error:
        work.change(failure=str(error))
        tidy(work, wanted)
        raise


def tidy(work: Work, wanted: Wanted) -> None:
    """Remove what belongs to earlier generations only. The endpoint must not need it any more."""
    stale = [
        resource
        for kind in ("EndpointConfig", "Model", "S3Objects")
        for resource in work.record.resources
        if resource.type == kind and resource.generation != wanted.fingerprint
    ]
    live = endpoints.describe(work.aws, work.record.name) if stale else None
    if live and live.status == "InService" and live.config == wanted.config_name:
        for resource in stale:
            remove_resource(work, resource)


def _now_serving(work: Work, generation: Generation) -> None:
    work.change(serving=generation, wanted=None, failure=None)


def _as_known(record: Deployment, generation: Generation) -> Generation:
    """The generation with its earlier proof, when it serves already."""
    serving = record.serving
    if serving and serving.fingerprint == generation.fingerprint:
        return serving
    return generation
