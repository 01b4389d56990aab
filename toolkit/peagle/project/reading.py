"""Finds and reads a project file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle.catalog.documents import (
    LARGEST_FILE,
    BadFile,
    Document,
    Location,
    Problem,
    display_path,
    dotted,
    parse_document,
    read_bytes,
)
from peagle.catalog.validation import validate
from peagle.errors import Fix, UserError
from peagle.project.model import FileOptions, file_model

FILE_NAME = "peagle.yaml"


class ProjectFileError(UserError, code="project-file"):
    """A project file is wrong; the message names file and key."""


@dataclass(frozen=True)
class Project:
    """A valid project file. ``options`` are those that it may contain."""

    path: Path
    document: Document
    options: FileOptions

    @property
    def data(self) -> dict[str, Any]:
        """The content, which the model has accepted."""
        data = self.document.data
        return data if isinstance(data, dict) else {}

    @property
    def folder(self) -> Path:
        """The folder that paths in the file are relative to."""
        return self.path.parent

    def error(self, location: Location, message: str, fix: str | Fix = "") -> ProjectFileError:
        """An error about the value at ``location``."""
        line, key = self.document.line(location), dotted(location)
        problem = Problem(self.document.file, line, key, message, "")
        return ProjectFileError(problem.text, fix)


def find_project(folder: Path) -> Path | None:
    """``peagle.yaml`` in the folder or the nearest one above; ``None`` without one."""
    start = folder.absolute()
    found = (one / FILE_NAME for one in (start, *start.parents))
    return next((path for path in found if path.is_file()), None)


def read_project(path: Path, options: FileOptions) -> Project:
    """The project file. Raises ProjectFileError for a file that is unreadable or wrong."""
    file = display_path(path)
    try:
        text = read_bytes(path, LARGEST_FILE).decode("utf-8")
    except BadFile as error:
        raise _file_error(error.problem) from None
    except UnicodeDecodeError as error:
        raise ProjectFileError(f"{file} is not UTF-8 (byte {error.start})", "save it so") from None
    return parse_project(text, path, options)


def parse_project(text: str, path: Path, options: FileOptions) -> Project:
    """The project file with this text. Raises ProjectFileError."""
    try:
        document = parse_document(text, display_path(path))
    except BadFile as error:
        raise _file_error(error.problem) from None
    _, problems = validate(document, file_model(options))
    if problems:
        raise _file_error(problems[0])
    return Project(path, document, options)


def _file_error(problem: Problem) -> ProjectFileError:
    return ProjectFileError(problem.text, problem.fix)
