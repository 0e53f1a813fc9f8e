"""``python -m ampcompat``: the command line, see ``ampcompat.cli``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
