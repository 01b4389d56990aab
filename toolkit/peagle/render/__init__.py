"""A Plan in the words of others: API requests, a file, templates. Pure."""

from peagle.render.files import RenderedFile
from peagle.render.formats import FORMATS, render
from peagle.render.plan_file import plan_bytes, plan_document, plan_from, read_plan
from peagle.render.requests import Request, requests

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
