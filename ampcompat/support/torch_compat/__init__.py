"""Features of the installed torch and this CPU, and the private names of torch that the package uses."""

# Before the modules of this package, since importing torch imports them under ``run --device``.
import torch  # noqa: F401
