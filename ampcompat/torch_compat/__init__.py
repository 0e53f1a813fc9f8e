"""What the installed torch and this CPU can do, and which private names of torch the package uses."""
