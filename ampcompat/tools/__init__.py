"""Tools that are not part of training: they observe sessions, and no session imports them."""
