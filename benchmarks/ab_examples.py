"""Runs ``ab`` on three examples, and writes what it prints into docs/ab.md.

    python benchmarks/ab_examples.py [--print]

A GAN, a language model and a classifier with checkpoints: each command as a user types it, in a terminal of 80 columns.
It takes two or three minutes. With ``--print`` the page stays as it is.
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
        "A GAN: each of its three losses has a row, and the line below names the one that decides.",
        "ab --levels O0,O1,O2 examples/gan.py",
    ),
    (
        "A language model, with three seeds, and the question whether O1 and O2 end within 2 % of O0.",
        "ab --levels O0,O1,O2 --repeats 3 --tolerance 0.02 examples/char_transformer.py --steps 100",
    ),
    (
        "A classifier that resumes from its checkpoints: each run has its own, by `{run}`.",
        "ab --levels O0,O2 examples/classifier.py --fp16 --checkpoint 'runs/{run}.pt'",
    ),
    (
        "The same without `--fp16`, where `amp.initialize` is never called.",
        "ab --levels O0,O2 --steps 20 examples/classifier.py",
    ),
    (
        "The GAN, rewritten by `migrate`: does it train alike?",
        "ab --against gan_new.py examples/gan.py",
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
        printed(folder, "migrate examples/gan.py -o gan_new.py")
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
