"""FILE COMMAND...: as one would write it with filelock."""

import subprocess
import sys

from filelock import FileLock, Timeout

try:
    with FileLock(sys.argv[1], timeout=0):
        sys.exit(subprocess.call(sys.argv[2:]))
except Timeout:
    sys.exit(75)
