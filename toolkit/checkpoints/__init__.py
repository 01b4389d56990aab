"""What lies where weights lie: config.json and the headers of safetensors files, never the
weights."""

from toolkit.checkpoints.folder import FolderSource
from toolkit.checkpoints.models import Checkpoint, Tensor
from toolkit.checkpoints.reading import read_checkpoint
from toolkit.checkpoints.source import Source

__all__ = ["Checkpoint", "FolderSource", "Source", "Tensor", "read_checkpoint"]
