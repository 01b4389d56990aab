"""Wait until the parent has recorded this process, then become the program in the arguments.

Run as ``python -I gate.py FOLDER PROGRAM ARGUMENT...`` with a pipe as standard input; the program
runs in FOLDER. One byte opens the gate. End of file without a byte means that the parent died or
failed to record the process: then nothing runs.
"""

import os
import sys

if __name__ == "__main__":
    if not os.read(0, 1):
        sys.exit("gate: the parent process ended before it recorded this engine")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(sys.argv[1])
    os.execv(sys.argv[2], sys.argv[2:])
