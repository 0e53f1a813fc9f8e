"""Which operation of a step at a level is the first to differ from float32 by more than its dtype explains."""
