"""``python -m ampcompat``.

Owns: nothing; it hands over to the desk.
Must not touch: anything.
The surprise: ``run`` does not come back: the script takes this process over.
"""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
