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


def row(table, **cells):
    """Return the first row that has these cells."""
    return next(each for each in table if all(each[name] == cell for name, cell in cells.items()))


def span(numbers):
    """Return "least to greatest" with two decimals."""
    numbers = [float(number) for number in numbers]
    return f"{min(numbers):.2f} to {max(numbers):.2f}"


def figures():
    """Return the rows of the README's table."""
    found = sections()
    steps = [each["ratio"].split(" / ") for each in tables(found["step_overhead.py"])[0]]
    memory = {each["level"].split(",")[0]: each for each in tables(found["memory.py"])[0]}
    unet = tables(found["seed_networks.py"])[1]
    half = tables(found["cpu_half.py"])[0]
    imported, torch_alone = re.search(r"takes (\d+) ms.*?took (\d+) ms", found["start_up.py"], re.DOTALL).groups()
    return [
        "| unscaling and `step()`, 8 to 2000 parameter tensors | {} | {} | `torch.amp.GradScaler` | B |".format(
            *(span(ratios) for ratios in zip(*steps))
        ),
        "| memory of a step with fused Adam, bytes per parameter element | {} | {}; O5 with remainders: {} | "
        "float32: {}; Apex at O2: 20 | A |".format(
            *(memory[level]["fused Adam"] for level in ("O0", "O2", "O5")), memory["O0"]["formula"]
        ),
        "| step with emulated float16 on a CPU: UNet | {} | {} | "
        "float32 (`torch.autocast` in float16 takes {}) | A |".format(
            *(row(unet, way=way)["to float32"] for way in ("O1", "O2", "autocast"))
        ),
        "| step with emulated float16 on a CPU: CNN, transformer, LSTM | {} | {} | float32 | B |".format(
            *(span(each[level] for each in half) for level in ("O1", "O2"))
        ),
        f"| `from ampcompat import amp` | {imported} ms | | `import torch` takes {torch_alone} ms | A |",
    ]


if __name__ == "__main__":
    print("\n".join(figures()))
