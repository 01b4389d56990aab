"""``python -m toolkit.cli`` is ``peagle``."""

from toolkit.cli.main import main

main()
