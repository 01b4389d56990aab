"""Wait until whoever started this has written it down, then become the program in the arguments.

Run as ``python -I gate.py FOLDER PROGRAM ARGUMENT...`` with a pipe as standard input; the program
runs in FOLDER. One byte opens the
gate; an end without a byte means that the starter died or changed its mind, and nothing runs.
"""

import os
import sys

if __name__ == "__main__":
    if not os.read(0, 1):
        sys.exit("gate: nobody opened it: the program that wanted an engine ended")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(sys.argv[1])
    os.execv(sys.argv[2], sys.argv[2:])
