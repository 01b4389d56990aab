"""The header of a safetensors file as tensors of a checkpoint.

The parser is the container's (``peagle_serve.safetensors``). It refuses everything that the
safetensors library refuses. The toolkit has a smaller limit, since it may download the header.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from peagle.checkpoints.models import Tensor
from peagle.errors import CheckpointError
from peagle_serve import safetensors as parser

LONGEST_HEADER = 25_000_000
"""Bytes. A model of 120 billion parameters has less than 1 MB; the library's limit is 100 MB."""


@contextmanager
def as_checkpoint_error() -> Iterator[None]:
    """Raise CheckpointError where the container's parsers raise DamagedFile."""
    try:
        yield
    except parser.DamagedFile as error:
        raise CheckpointError(error.message, error.fix) from error


def header_bytes(start: bytes, file_size: int, file: str) -> int:
    """The bytes that the header takes, including the 8 bytes of its length.

    ``start`` is the beginning of the file, 8 bytes or more. Raises CheckpointError when the file
    cannot hold such a header, or the header is too large.
    """
    with as_checkpoint_error():
        return parser.header_bytes(start, file_size, file, LONGEST_HEADER)


def parse_header(head: bytes, file_size: int, file: str) -> dict[str, Tensor]:
    """The tensors of the file named ``file``, in the order of their bytes.

    ``head`` is its first ``header_bytes()`` bytes or more. Raises CheckpointError when the file is
    cut short, is not a safetensors file, or its header contradicts itself.
    """
    with as_checkpoint_error():
        found = parser.parse_header(head, file_size, file, limit=LONGEST_HEADER)
    return {name: Tensor(one.dtype, one.shape, one.size, file) for name, one in found.items()}
