"""What the installed torch and this CPU can do, and which private names of torch the package uses."""

# Before the modules of this package, since under ``run --device`` the import of torch imports them.
import torch  # noqa: F401
