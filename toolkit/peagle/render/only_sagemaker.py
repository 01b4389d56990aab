"""What of a plan only SageMaker does, for formats whose engines run elsewhere."""

from __future__ import annotations

from peagle.planning.plan import Plan


def only_sagemaker(plan: Plan, host: str) -> str:
    """What no other host of engines expresses; "" for nothing. ``host`` says whose the machines
    are."""
    company, observe = plan.company, plan.observe
    reasons = {
        f"--ami sets the host's image: {host}": plan.overrides.ami is not None,
        f"--subnets and --security-groups set a VPC: {host}": company.in_vpc,
        f"--network-isolation: {host}": company.network_isolation,
        f"--kms-key encrypts the instances' volumes: {host}": company.kms_key is not None,
        "--rollout needs alarms that undo an update": plan.rollout is not None,
        "--scale-to-zero wakes on SageMaker's count of the requests that found no copy": bool(
            plan.scaling and plan.scaling.scales_to_zero
        ),
        "--ttl and --budget need a schedule that deletes the endpoint": plan.limit is not None,
        "--observe makes a dashboard and alarms in CloudWatch": bool(
            observe and (observe.dashboard or observe.alarms or observe.alarm_topic)
        ),
        "--log-retention is of a log in CloudWatch": bool(observe and observe.log_retention_days),
        "--weights-by stream reads S3 with the role of an endpoint": any(
            one.weights.streamed for one in (plan.target, plan.drafter) if one and one.weights
        ),
    }
    return next((reason for reason, applies in reasons.items() if applies), "")
