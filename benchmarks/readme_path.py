"""Runs the commands that the README shows, and writes what they print into the README and docs/ab.md.

    python benchmarks/readme_path.py [--print]

Of ``ab`` at the top the table and the verdicts are kept (in docs/ab.md everything), of each command from check to plain
torch the result, and "…" stands for what is left out. It takes two to five minutes. With ``--print`` the pages stay as
they are.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
README, PAGE = os.path.join(ROOT, "README.md"), os.path.join(ROOT, "docs", "ab.md")
BEGIN, END = "<!-- what benchmarks/readme_path.py prints -->\n", "<!-- end of what it prints -->\n"
BEGIN_AB, END_AB = "<!-- what benchmarks/readme_path.py prints of ab -->\n", "<!-- end of what it prints of ab -->\n"

#: Commands after ``ampcompat``, in a folder with a copy of the script, and the lines, or beginnings of lines, to show.
SCRIPT, NEW = "char_transformer.py", "plain_torch.py"
AB = (
    f"ab --levels O0,O1,O2,O3 --steps 100 {SCRIPT} --eps 1e-8",
    r"(level|O\d|\*|to target|Accepted|If memory|To see|Take|No advice).*",
)
STEPS = (
    (f"check --brief {SCRIPT}", "Runs unchanged.*|Does not run.*"),
    (f"run {SCRIPT} --steps 100", "validation loss.*"),
    (f"migrate {SCRIPT} -o {NEW}", rf"wrote {NEW}"),
    (f"ab --against {NEW} {SCRIPT} --steps 100", rf"{NEW} (trains|does not train) like .*? %\."),
)


def printed(folder, command, has_stderr=False):
    """Return what ``ampcompat COMMAND``, read by a shell, prints on a terminal of 80 columns.

    Args:
        folder: where it runs.
        command: the name of a command, and its arguments.
        has_stderr: whether stderr counts too; progress goes there.
    """
    whole = f"{sys.executable} -m ampcompat {command}"
    stderr = subprocess.STDOUT if has_stderr else subprocess.DEVNULL
    env = dict(os.environ, COLUMNS="80")
    done = subprocess.run(whole, shell=True, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=stderr)
    return done.stdout.decode("utf-8")


def write_between(path, begin, end, text):
    """Replace what a page has between two marks."""
    with open(path, encoding="utf-8") as file:
        head, _, rest = file.read().partition(begin)
    with open(path, "w", encoding="utf-8") as file:
        file.write(head + begin + text + end + rest.partition(end)[2])


def shown(text, pattern):
    """Return what matches a pattern at the beginning of lines, with "…" for what is left out."""
    kept = []
    for line in re.sub(r"\n {4}(?=\S)", " ", text).splitlines():  # what continues a sentence is indented
        found = re.match(pattern, line)
        if found:
            kept.append(found.group() + ("" if found.group() == line else " …"))
        elif line.strip() and kept[-1:] != ["…"]:
            kept.append("…")
    return kept


def main():
    """Run the commands and write the pages; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--print", action="store_true", dest="only_prints")
    options = parser.parse_args()
    whole, shown_by = [], []
    with tempfile.TemporaryDirectory() as folder:
        os.symlink(os.path.join(ROOT, "examples", SCRIPT), os.path.join(folder, SCRIPT))
        for command, pattern in (AB, *STEPS):
            text = printed(folder, command, has_stderr=command.startswith("migrate"))
            whole.append(f"$ ampcompat {command}\n{text.strip()}\n")
            found = [f"$ ampcompat {command}"] + shown(text, pattern)
            print("\n".join(found), flush=True)
            shown_by.append("".join(f"{line}\n" for line in found))
    if not options.only_prints:
        write_between(PAGE, BEGIN_AB, END_AB, f"```console\n{whole[0]}```\n")
        write_between(README, BEGIN_AB, END_AB, f"```console\n{shown_by[0]}```\n")
        write_between(README, BEGIN, END, "```console\n" + "".join(shown_by[1:]) + "```\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
