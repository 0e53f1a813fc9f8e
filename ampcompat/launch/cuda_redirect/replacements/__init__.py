"""The replacements of the CUDA names in ``name_table``, by kind."""
