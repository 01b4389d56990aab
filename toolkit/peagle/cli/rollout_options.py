"""The planning options for how an update replaces what serves."""

from __future__ import annotations

from typing import get_args

import click

from peagle.cli.options import duration
from peagle.planning.options import RolloutKind

ROLLOUT_OPTIONS = (
    click.option(
        "--rollout",
        type=click.Choice(get_args(RolloutKind)),
        help="How updates move traffic to new instances, with alarms that undo them; the one on "
        "--slo ttft sees streamed requests only.  "
        "[default: SageMaker's, without alarms]",
    ),
    click.option(
        "--rollout-step",
        metavar="SIZE",
        help="Instances of one step, such as 2 or 25%.  [default: 5%, canary 10%, linear 25%]",
    ),
    click.option(
        "--baking-time",
        metavar="DURATION",
        callback=duration,
        help="Time for alarms to act after each step; 1h at most.  [default: 10m]",
    ),
)
