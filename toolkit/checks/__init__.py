"""What can be known to be wrong before a GPU is paid for: one rule per file. Pure."""
