"""What ``run`` does to a script that is written for another device or without levels; the script is not changed."""
