"""`peagle weights` names the endpoints that use a prefix, and the weights that a sync replaces."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from peagle.deploy.records import refuse_weights_in_use
from peagle.errors import Refused
from peagle.planning.plan import MODEL_BUCKET
from peagle.weights.layout import weights_prefix
from tests.support import raises_code
from tests.unit.cli.endpoints import deployed

PLACE = weights_prefix("s3://models/pair")


@pytest.mark.parametrize(
    "uri",
    ["s3://models/pair/", "s3://models/pair/target/", "s3://models/", f"s3://{MODEL_BUCKET}/pair/"],
)
def test_weights_that_an_endpoint_uses_are_refused(own_home: Path, uri: str) -> None:
    deployed(uri)
    with raises_code("weights-in-use", Refused) as refused:
        refuse_weights_in_use({PLACE.uri}, "sandbox", "it ends")
    assert "s3://models/pair/: in use by peagle-chat: it ends" in refused.value.message
    assert refused.value.command == ("peagle", "destroy", "peagle-chat")
    assert "--even-if-used" in refused.value.fix


@pytest.mark.parametrize(
    ("used", "refused"),
    [
        ("s3://models/pair/", True),
        ("s3://models/pair/drafter/", True),
        ("s3://models/pair/target/", False),
    ],
)
def test_only_the_folder_that_is_replaced_matters(own_home: Path, used: str, refused: bool) -> None:
    deployed(used)
    with pytest.raises(Refused) if refused else nullcontext() as caught:
        refuse_weights_in_use(
            {"s3://models/pair/drafter/"}, "sandbox", "it changes", "use another prefix, or "
        )
    if caught is not None:
        assert "s3://models/pair/drafter/: in use by peagle-chat" in caught.value.message
        assert caught.value.fix.startswith("use another prefix, or remove what uses them first")


def test_other_prefixes_accounts_and_deployments_without_endpoint_do_not_matter(
    own_home: Path,
) -> None:
    deployed("s3://models/pair-2/")
    refuse_weights_in_use({PLACE.uri}, "sandbox", "")
    deployed("s3://models/pair/", "S3Objects")
    refuse_weights_in_use({PLACE.uri}, "sandbox", "")
    deployed("s3://models/pair/", scope="111122223333")
    refuse_weights_in_use({PLACE.uri}, "sandbox", "")
