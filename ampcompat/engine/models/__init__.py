"""What initialize does to models: weights, forward, state dicts, wrappers for several processes."""
