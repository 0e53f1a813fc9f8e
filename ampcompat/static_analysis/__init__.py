"""What a script says, without running it: ``check`` reports on it, ``migrate`` rewrites it. Needs no torch."""
