"""Tools around training: each is a package of its own."""
