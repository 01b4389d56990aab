"""Reads and validates the catalogue; every error has the file, the key and the expected value."""

from peagle.catalog.find import find_drafter, find_instance, find_pair, pair_name
from peagle.catalog.loading import load_catalog
from peagle.catalog.tables import image_uri

__all__ = [
    "find_drafter",
    "find_instance",
    "find_pair",
    "image_uri",
    "load_catalog",
    "pair_name",
]
