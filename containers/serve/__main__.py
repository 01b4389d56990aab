"""``python3 containers/serve serve``, as SageMaker runs it: ``docker run IMAGE serve``."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent.parent)

from serve.command import main  # noqa: E402  (its folder is put on the path just above)

if __name__ == "__main__":
    main(sys.argv[1:])
