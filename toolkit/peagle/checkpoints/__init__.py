"""Reads checkpoints: config.json and the headers of safetensors files, never the weights."""

from peagle.checkpoints.files import FolderSource
from peagle.checkpoints.models import Checkpoint, Source, Tensor
from peagle.checkpoints.reading import read_checkpoint

__all__ = ["Checkpoint", "FolderSource", "Source", "Tensor", "read_checkpoint"]
