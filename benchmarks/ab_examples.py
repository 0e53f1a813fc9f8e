"""Runs ``ab`` on two examples, and writes what it prints into docs/ab.md.

    python benchmarks/ab_examples.py [--print]

A language model and a GAN: each command as a user types it, in a terminal of 80 columns. It takes a few minutes. With
``--print`` the page stays as it is.
"""

import argparse
import os
import sys
import tempfile

from printed_commands import ROOT, printed, write_between

PAGE = os.path.join(ROOT, "docs", "ab.md")
BEGIN, END = "<!-- what benchmarks/ab_examples.py prints -->\n", "<!-- end of what it prints -->\n"

#: What is said of each example, and its command after ``python -m ampcompat``; a shell reads it.
EXAMPLES = (
    (
        "A language model with Adam's epsilon of 1e-8, which is 0 in float16: O3, which has no float32 weights, is "
        "rejected.",
        "ab --levels O0,O1,O2,O3 --steps 100 examples/char_transformer.py --eps 1e-8",
    ),
    (
        "A GAN: each of its three losses has a row, and the line below gives the one that decides.",
        "ab --levels O0,O1,O2 examples/gan.py",
    ),
)


def main():
    """Run the examples and write the page; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--print", action="store_true", dest="only_prints")
    options = parser.parse_args()
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.join(ROOT, "examples"), os.path.join(folder, "examples"))
        for told, command in EXAMPLES:
            text = printed(folder, command)
            print(f"$ python -m ampcompat {command}\n\n{text}", flush=True)
            lines = ["$ python -m ampcompat " + command, ""] + text.splitlines()
            parts.append(told + "\n\n" + "".join(f"    {line}".rstrip() + "\n" for line in lines))
    if not options.only_prints:
        write_between(PAGE, BEGIN, END, "\n" + "\n".join(parts) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
