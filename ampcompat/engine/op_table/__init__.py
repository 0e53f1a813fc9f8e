"""The op table: which functions of torch run in which dtype at O1 and O4."""
