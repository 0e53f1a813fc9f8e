"""What ``check`` and ``migrate`` ask of a script: imports, names and scopes, loops, optimizers, levels."""
