"""The launcher: ``python -m apex.parallel.multiproc script.py …``."""

import sys

from ampcompat.apex.parallel.multiproc import main

if __name__ == "__main__":
    sys.exit(main())
