"""New snapshots for the catalogue, from AWS: what changed, and the tables as they should be.

    images       sagemaker-core's own table of images          -> runtimes
    instances    botocore's list of types, EC2's numbers       -> instances
    prices       the Pricing API                               -> instances
    quotas       codes and defaults of Service Quotas          -> instances
    changes      what differs between two tables, for people and as data

Each part is a function from table to table; nothing is written here.
"""

from toolkit.aws.refresh.changes import Change, changes
from toolkit.aws.refresh.parts import PARTS, Part, Refreshed, refreshed

__all__ = ["PARTS", "Change", "Part", "Refreshed", "changes", "refreshed"]
