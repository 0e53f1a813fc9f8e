"""Print the rows of the README's table of figures, from the tables of RESULTS.md. A test compares them with the README.

python benchmarks/readme_figures.py
"""

import pathlib
import re

RESULTS = pathlib.Path(__file__).with_name("RESULTS.md")


def sections():
    """Return {name of the benchmark: text} of RESULTS.md."""
    parts = re.split(r"^## ([\w.]+):", RESULTS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def tables(text):
    """Return the tables in a text, each a list of rows, each a {head of the column: cell}."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        found.append([dict(zip(head, row)) for row in rows])
    return found


def span(numbers):
    """Return "least to greatest" with two decimals."""
    numbers = [float(number) for number in numbers]
    return f"{min(numbers):.2f} to {max(numbers):.2f}"


def figures():
    """Return the rows of the README's table."""
    found = sections()
    steps = [each["ratio"].split(" / ") for each in tables(found["step_overhead.py"])[0]]
    memory = {each["level"].split(",")[0]: each for each in tables(found["memory.py"])[0]}
    (forward,) = [each["O1"] for each in tables(found["calls_per_forward.py"])[0] if each[""] == "ratio"]
    return [
        f"| forward pass of four small encoder layers | {forward} | | `torch.autocast` by hand |",
        "| unscaling and `step()`, 8 to 2000 parameter tensors | {} | {} | `torch.amp.GradScaler` |".format(
            *(span(ratios) for ratios in zip(*steps))
        ),
        "| memory of a step with fused Adam, bytes per parameter element | {} | {}; O5 with remainders: {} | "
        "float32: {}; Apex at O2: 20 |".format(
            *(memory[level]["fused Adam"] for level in ("O0", "O2", "O5")), memory["O0"]["formula"]
        ),
    ]


if __name__ == "__main__":
    print("\n".join(figures()))
