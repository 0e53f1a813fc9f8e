"""What takes the place of the names of CUDA that ``name_table`` lists, by kind."""
