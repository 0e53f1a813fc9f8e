"""Names of ``apex.amp`` that are views of the engine: ``Properties``, ``_amp_state``, the API from before 2019."""
