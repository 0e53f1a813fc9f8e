"""What Python runs at startup under ``forced_scripts.py``: small random data, few steps, and a record of the losses.

The training code of the scripts is not changed. Nothing happens before the script imports torch. Environment variables:

    SCRIPT_RECORD  the JSON file that gets the record when the process ends; rank N of several appends ``.N``
    SCRIPT_STEPS   the number of backward passes after which the script ends, as by ``sys.exit(0)``
    SCRIPT_SMALL   "module:name(key=value,...);...": functions and classes whose keyword arguments are replaced
"""

import os

if os.environ.get("SCRIPT_RECORD"):
    import fakes

    fakes.install()
