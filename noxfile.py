"""The legs of ``.ci/run`` as sessions of nox: ``nox -s LEG`` runs one, ``nox --list`` prints them all."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess

import nox

ROOT = pathlib.Path(__file__).resolve().parent
EXTRAS = nox.project.load_toml(str(ROOT / "pyproject.toml"))["project"]["optional-dependencies"]

#: Folders whose tests start no processes, or next to none.
FAST = "casting check loss_scaling op_table optimizers session specification".split()
FAST += ["torch_compat"]

nox.options.default_venv_backend = "venv"  # virtualenv makes no environments for Python 3.7
nox.options.sessions = ["main", "interpreters", "lint"]


def table(*path):
    """Return the rows of a text file, split into columns; lines that start with # are comments."""
    lines = ROOT.joinpath(*path).read_text(encoding="utf-8").splitlines()
    return [line.split() for line in lines if not line.startswith("#")]


def readme_command():
    """Return what the README's test command gives to pip install, and the command that runs the tests."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    command = re.search(r"^    pip install (.*) && (python -m pytest.*)$", readme, re.MULTILINE)
    return shlex.split(command.group(1)), shlex.split(command.group(2))


REQUIREMENTS, TESTS = readme_command()
(TORCH,) = [each for each in REQUIREMENTS if each.startswith("torch==")]
VERSIONS = "import platform, torch; print('torch', torch.__version__, '/ python', platform.python_version())"


CLIENTS = table("tests", "clients", "table.txt")


def define_torch_leg(release, python, leg, _gigabytes, *also):
    """Define the session that runs the README's test command with a release of torch in place of its own."""
    name = "main" if leg == "main" else "torch-" + release
    requirements = ["torch==" + release if each == TORCH else each for each in REQUIREMENTS]
    clients = [(client, folder) for client, folder, _, run_by in CLIENTS if run_by == name]

    def run(session):
        files = [arg for _, folder in clients for arg in ("-r", f"tests/clients/{folder}/requirements.txt")]
        session.install(*requirements, *also, *files)
        session.run("python", "-c", VERSIONS)
        session.run(*TESTS, *session.posargs, env={"AMPCOMPAT_CLIENT": ",".join(client for client, _ in clients)})

    run.__doc__ = f"The test suite with torch {release}."
    nox.session(run, name=name, python=python, tags=["ci"] if leg in FIXED else [])


FIXED = ("main", "CI")  # the legs of .ci/torch_versions.txt that are run at every commit
RELEASES = table(".ci", "torch_versions.txt")
for row in RELEASES:
    define_torch_leg(*row)


@nox.session(python="3.13", tags=["ci"])
def newest(session):
    """The test suite with what ``pip install torch`` gives. Skipped where that is the release of another leg."""
    listed = session.run_install("python", "-m", "pip", "index", "versions", "torch", silent=True)  # None with -R
    found = re.search(r"^torch \(([\d.]+)", listed or "", re.MULTILINE)
    legs = {
        release: "main" if leg == "main" else "torch-" + release for release, _, leg, *_ in RELEASES if leg in FIXED
    }
    if found and found.group(1) in legs:
        session.skip(f"covered: pip installs torch {found.group(1)}, which is the leg {legs[found.group(1)]}")
    session.install(*["torch" if each == TORCH else each for each in REQUIREMENTS])
    session.run("python", "-c", VERSIONS)
    session.run(*TESTS, *session.posargs)


@nox.session(python=False, tags=["ci"])
def interpreters(session):
    """Every Python 3.7 to 3.13 that is found, without torch: the code compiles, the command line starts."""
    for version in ["3.7", "3.8", "3.9", "3.10", "3.11", "3.12", "3.13"]:
        python = shutil.which("python" + version)
        if python and subprocess.run([python, "--version"], stdout=subprocess.DEVNULL).returncode == 0:
            session.run(python, ".ci/without_torch.py", external=True)
        else:
            print(f"******** leg python-{version} was NOT RUN: there is none here ********")


@nox.session(python="3.11", tags=["ci"])
def lint(session):
    """Ruff's rules and format, as pyproject.toml sets them."""
    session.install(*EXTRAS["lint"])
    session.run("ruff", "check", "--no-cache", ".")
    session.run("ruff", "format", "--no-cache", "--check", ".")


@nox.session(python="3.11", tags=["ci"])
def docs(session):
    """The documentation site; a warning, such as a broken link, is an error."""
    session.install(*EXTRAS["docs"])
    # --quiet would hide warnings from --strict.
    site, env = session.create_tmp(), {"NO_MKDOCS_2_WARNING": "1"}
    session.run("mkdocs", "build", "--strict", "--site-dir", site, env=env)


@nox.session(python="3.11", tags=["ci"])
def package(session):
    """Sdist, and wheel from the sdist, used in a folder where no checkout can be imported instead."""
    session.install("build", "nox", "setuptools>=64", "wheel", TORCH)
    session.run("bash", ".ci/package.sh", external=True)


def define_client_leg(leg, folder, python, run_by):
    """Define the session that runs the tests of packages that use ampcompat's names, or Apex's."""
    tests = ROOT / "tests" / "clients" / folder

    def run(session):
        constraints = tests / "constraints.txt"
        env = {"PIP_CONSTRAINT": str(constraints)} if constraints.exists() else None
        session.install("-r", str(tests / "requirements.txt"), env=env)
        if (tests / "releases.txt").exists():  # source releases, for the tests that are in them
            target = os.path.join(session.virtualenv.location, "releases")
            options = ["--no-deps", "--no-build-isolation", "--no-binary", ":all:", "--dest", target]
            session.run_install("python", "-m", "pip", "download", *options, "-r", str(tests / "releases.txt"))
        session.run("python", "-c", VERSIONS)
        # Its tests skip where a client cannot be imported, and then a leg that says "skipped" has tested nothing.
        env = {"PYTHONPATH": str(ROOT), "AMPCOMPAT_CLIENT": leg}
        session.run(*TESTS, f"tests/clients/{folder}", *session.posargs, env=env)

    run.__doc__ = f"Packages as they are: tests/clients/{folder}."
    nox.session(run, name=leg, python=python, tags=["ci"] if run_by == "CI" else [])


for row in CLIENTS:
    define_client_leg(*row)


@nox.session(name="newest-clients", python="3.11")
def newest_clients(session):
    """The tests of the clients with the newest releases of all of them, where those still support Apex."""
    for _, folder, *_ in CLIENTS:
        tests = ROOT / "tests" / "clients" / folder
        names = [row[0] for row in table("tests", "clients", folder, "requirements.txt")]
        session.install(*sorted({re.split("[=<>]", name)[0] for name in names}), "--upgrade")
        session.run("python", "-c", VERSIONS)
        session.run("python", "-m", "pytest", str(tests), *session.posargs, env={"PYTHONPATH": str(ROOT)})


@nox.session(python="3.11")
def fast(session):
    """The tests that start no processes, for the systems that .ci/run does not cover."""
    session.install(*REQUIREMENTS)
    # On Windows text files are not read as UTF-8 otherwise.
    session.run(*TESTS, *["tests/" + name for name in FAST], *session.posargs, env={"PYTHONUTF8": "1"})


@nox.session(python="3.11")
def databases(session):
    """The tests with torch's own databases on twelve samples of each operator and module instead of two or three."""
    session.install(*REQUIREMENTS)
    session.run(*TESTS, "tests/torch_databases", *session.posargs, env={"TORCH_DATABASE_SAMPLES": "12"})


@nox.session(python="3.11")
def interrupts(session):
    """An error at every line of ``initialize``, a step and ``reset``, and instead of every operation of torch.

    Two hours of a CPU; ``-- -k "going and O3"`` runs a part.
    """
    session.install(*REQUIREMENTS)
    tests = ["tests/session/test_interrupts.py", "tests/session/test_out_of_memory.py"]
    session.run(*TESTS, "--dist", "load", *tests, *session.posargs, env={"EVERY_INTERRUPT": "1"})


@nox.session(name="second-device", python="3.11", tags=["ci"])
def second_device(session):
    """The tests with torch_xla's CPU runtime, a device that computes only when a value is read."""
    requirements = [each for each in REQUIREMENTS if each != TORCH]
    session.install("torch==2.9.1", "torch_xla==2.9.0", *requirements)
    session.run("python", "-c", VERSIONS)
    session.run("python", ".ci/second_device.py", *session.posargs)


@nox.session(python="3.11")
def gpu(session):
    """The tests that need a CUDA device, with a torch that has CUDA."""
    session.install(*REQUIREMENTS)
    session.run("python", "-c", "import torch; assert torch.cuda.is_available(), 'torch sees no CUDA device'")
    session.run("python", "-m", "pytest", "-m", "cuda", *session.posargs)


@nox.session(python="3.11")
def examples(session):
    """Train both examples at every level, in full."""
    session.install(TORCH, ".[examples]")
    for script in ("digits_cnn.py", "char_transformer.py"):
        for level in ("O0", "O1", "O2", "O3", "O4", "O5"):
            session.run("python", "-m", "ampcompat", "run", "--opt-level", level, "examples/" + script)


@nox.session(python="3.11")
def mutations(session):
    """Seed faults in a copy of the package, one at a time; the tests must catch each: ``-- --only NAME`` seeds some."""
    session.install(*REQUIREMENTS)
    session.run("python", "-m", "helpers.mutations", *session.posargs, env={"PYTHONPATH": "tests"})
