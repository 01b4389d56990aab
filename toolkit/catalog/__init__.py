"""Reads and validates the catalogue; every error says file, key, and what was expected."""

from toolkit.catalog.images import image_uri
from toolkit.catalog.loading import load_catalog
from toolkit.catalog.pairs import find_drafter, find_instance, find_pair, pair_name

__all__ = [
    "find_drafter",
    "find_instance",
    "find_pair",
    "image_uri",
    "load_catalog",
    "pair_name",
]
