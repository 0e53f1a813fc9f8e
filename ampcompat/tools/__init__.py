"""Tools beside the training itself: they observe sessions, and no session imports them."""
