"""A Plan as API requests, as a file, and in the formats of other tools. Pure."""

from peagle.render.files import RenderedFile
from peagle.render.formats import format_files, format_names, render
from peagle.render.plan_file import plan_bytes, plan_document, plan_from, read_plan
from peagle.render.requests import Request, requests

__all__ = [
    "RenderedFile",
    "Request",
    "format_files",
    "format_names",
    "plan_bytes",
    "plan_document",
    "plan_from",
    "read_plan",
    "render",
    "requests",
]
