"""The digest of each of AWS's images, from ECR."""

from __future__ import annotations

from toolkit.aws import ecr
from toolkit.aws.session import Aws
from toolkit.catalog.images import image_uri
from toolkit.catalog.tables import RuntimeTable
from toolkit.errors import NotFound


def with_digests(table: RuntimeTable, aws: Aws) -> tuple[RuntimeTable, tuple[str, ...]]:
    """The table with the digests that ECR tells in the connection's region, and the versions of
    which it tells none: these stay as they are."""
    runtimes, unknown = [], []
    for runtime in table.runtimes:
        try:
            digest = ecr.digest_of(aws, image_uri(table, runtime, aws.region))
        except NotFound:
            digest = None
        if digest is None:
            unknown.append(runtime.vllm)
        found = runtime if digest is None else runtime.model_copy(update={"digest": digest})
        runtimes.append(found)
    return table.model_copy(update={"runtimes": tuple(runtimes)}), tuple(unknown)
