"""``python -m peagle.cli`` is ``peagle``."""

from peagle.cli.main import main

main()
