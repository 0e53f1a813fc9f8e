"""Loss scaling: the loss scale, the overflow check, and its all-reduce over a process group."""
