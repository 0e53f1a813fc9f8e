"""What ``ampcompat run`` does to a script that is not written for the device or the level: without changing it."""
