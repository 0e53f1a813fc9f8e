"""``python -m ampcompat``: the command line, see ``ampcompat.cli``.

``python -m`` puts the working folder first on ``sys.path``, where a file such as ``json.py`` would be imported in place
of Python's own. The folder of the interpreter replaces it, as for the command ``ampcompat``.
"""

import os
import sys

if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(sys.executable)
    from ampcompat.cli import main

    sys.exit(main())
