"""The catalogue's prompts of a pair, for a comparison without a file of the user's."""

from __future__ import annotations

import json

from peagle.bench.prompts import PromptSet, parse_prompts
from peagle.catalog.schema import Catalog
from peagle.deploy.proving.request import DEFAULT_PROMPTS, find_pair_of_tag
from peagle.render.requests import tag_value

CATALOGUE = "the catalogue's prompts"


def prompts_of_pair(catalog: Catalog, pair: str | None) -> PromptSet:
    """The prompts with which a deployment of ``pair`` is proved; of an unknown pair, some
    questions."""
    target, _ = find_pair_of_tag(tag_value(pair), catalog) if pair else (None, None)
    texts = target.proof.prompts if target and target.proof else DEFAULT_PROMPTS
    lines = [json.dumps({"prompt": text}) for text in texts]
    return parse_prompts("\n".join(lines).encode(), CATALOGUE)
