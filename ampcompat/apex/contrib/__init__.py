"""The parts of ``apex.contrib`` that scripts import, each on any device."""
