"""One rule per file; a new file is a new rule."""
