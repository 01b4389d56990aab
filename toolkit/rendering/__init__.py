"""A Plan in the words of others: API requests, a file, templates. Pure."""

from toolkit.rendering.document import plan_bytes, plan_document, plan_from, read_plan
from toolkit.rendering.formats import FORMATS, render
from toolkit.rendering.models import RenderedFile, Request
from toolkit.rendering.requests import requests

__all__ = [
    "FORMATS",
    "RenderedFile",
    "Request",
    "plan_bytes",
    "plan_document",
    "plan_from",
    "read_plan",
    "render",
    "requests",
]
