"""Run code written for CUDA on another device; ``ampcompat/cuda_redirect.py`` has the public function.

Names of torch are replaced one by one (see ``name_table``), not by torch's function modes: replacements apply in every
thread, add no overhead to other names, work with every torch since 1.3, and do not interfere with ``torch.compile`` or
modes of the user. Function modes need torch 2.0, apply to one thread, and handle neither ``torch.cuda`` nor classes.
"""
