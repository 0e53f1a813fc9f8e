"""An optimizer at a level: its replaced methods, the scale of its gradients, and float32 masters of half weights."""

IS_BOOKKEEPING = True  # see support/script_frames.py
