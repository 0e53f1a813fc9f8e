"""``nox``: the suite on each torch that is supported; ``nox -s "tests(py3.11-torch2.13.0)"`` runs one leg.

Each leg is (Python, torch, what else that torch needs). Interpreters that are not on this machine are skipped.
"""

import pathlib

import nox

LEGS = [
    ("3.7", "1.3.1", []),
    ("3.8", "1.5.1", []),
    ("3.8", "1.6.0", []),
    ("3.10", "1.12.1", ["numpy<2"]),
    ("3.10", "1.13.1", ["numpy<2"]),
    ("3.11", "2.1.2", ["numpy<2"]),
    ("3.11", "2.3.1", []),
    ("3.11", "2.5.1", []),
    ("3.11", "2.8.0", []),
    ("3.11", "2.13.0", []),
    ("3.11", "2.15.0", []),  # 5.7 GB with its CUDA libraries
    ("3.12", "2.13.0", []),
    ("3.13", "2.13.0", []),
]

#: Packages that use ampcompat's names, tested as they are: (leg, folder of tests, Python) each.
TABLE = pathlib.Path("tests/clients/table.txt").read_text().splitlines()
CLIENTS = [line.split() for line in TABLE if not line.startswith("#")]

nox.options.sessions = ["tests", "interpreters"]


@nox.session
@nox.parametrize("python,torch,needs", [nox.param(*leg, id="py{}-torch{}".format(*leg)) for leg in LEGS])
def tests(session, torch, needs):
    """Install ampcompat with its test extra beside that torch, and run the suite."""
    session.install("torch=={}".format(torch), "-e", ".[test]", *needs)
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session(python=False)
def interpreters(session):
    """Without torch, on each Python that is here: the code compiles and the command line starts."""
    session.run("bash", ".ci/run", "interpreters", external=True)


@nox.session
@nox.parametrize("python,leg,folder", [nox.param(python, leg, folder, id=leg) for leg, folder, python in CLIENTS])
def clients(session, leg, folder):
    """Install a client and run its tests: ``nox -s "clients(mmcv)"``."""
    tests = pathlib.Path("tests/clients", folder)
    constraints = tests / "constraints.txt"
    env = {"PIP_CONSTRAINT": str(constraints.resolve())} if constraints.exists() else {}
    session.install("-r", str(tests / "requirements.txt"), env=env)
    env = {"PYTHONPATH": ".", "AMPCOMPAT_CLIENT": leg}
    session.run("python", "-m", "pytest", str(tests), *session.posargs, env=env)


@nox.session(python="3.11")
@nox.parametrize("leg", ["lint", "docs", "package"], ids=["lint", "docs", "package"])
def tools(session, leg):
    """A leg of .ci/run that runs a tool: ``nox -s "tools(lint)"``."""
    session.install("-r", ".ci/requirements-{}.txt".format(leg))
    session.run("bash", ".ci/{}.sh".format(leg), external=True)


@nox.session(python="3.11")
def examples(session):
    """Train both examples at every level, in full."""
    session.install("torch==2.13.0", ".[examples]")
    for script in ("digits_cnn.py", "char_transformer.py"):
        for level in ("O0", "O1", "O2", "O3", "O4", "O5"):
            session.run("python", "-m", "ampcompat", "run", "--opt-level", level, "examples/" + script)
