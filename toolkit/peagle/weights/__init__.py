"""A pair's weights in S3, laid out as every renderer can express it.

    s3://bucket/prefix/target/...            the target's files
    s3://bucket/prefix/drafter/...           the drafter's files
    s3://bucket/prefix/peagle-weights.json   what should lie there, and whether it does
    s3://bucket/prefix/peagle-weights.lock   who copies or removes just now
    s3://bucket/prefix/warm/...              what engines compiled: `peagle warm` brings it

One prefix, so one mount: /opt/ml/model/target and /opt/ml/model/drafter.
"""

from peagle.weights.layout import Place, place_of
from peagle.weights.queue import Moment
from peagle.weights.sources import Origin, origin_of
from peagle.weights.sync import Outcome, sync
from peagle.weights.sync_plan import Survey, survey

__all__ = [
    "Moment", "Origin", "Outcome", "Place", "Survey", "origin_of", "place_of", "survey", "sync",
]  # fmt: skip
