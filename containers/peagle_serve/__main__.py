"""``python3 containers/peagle_serve serve``, as SageMaker runs it: ``docker run IMAGE serve``."""

import os
import sys

sys.path[0] = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))

from peagle_serve.early import end_when_told  # noqa: E402  (its folder is put on the path just above)

end_when_told()

from peagle_serve.command import main  # noqa: E402  (its imports take time, and may be interrupted now)

if __name__ == "__main__":
    main(sys.argv[1:])
