"""A pair's weights in S3, laid out as every renderer can express it.

    s3://bucket/prefix/target/...            the target's files
    s3://bucket/prefix/drafter/...           the drafter's files
    s3://bucket/prefix/peagle-weights.json   what should lie there, and whether it does
    s3://bucket/prefix/peagle-weights.lock   who copies or removes just now
    s3://bucket/prefix/warm/...              what engines compiled: `peagle warm` brings it

One prefix, so one mount: /opt/ml/model/target and /opt/ml/model/drafter.
"""

from toolkit.aws.weights.layout import Place, place_of
from toolkit.aws.weights.meter import Moment
from toolkit.aws.weights.origins import Origin, origin_of
from toolkit.aws.weights.surveying import Survey, survey
from toolkit.aws.weights.syncing import Outcome, sync

__all__ = [
    "Moment", "Origin", "Outcome", "Place", "Survey", "origin_of", "place_of", "survey", "sync",
]  # fmt: skip
