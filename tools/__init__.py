"""Scripts of maintainers, which are no part of the wheel."""
