"""Rules on functions that refuse half inputs at O1."""

from ..reading.names import called, last_name

_REGISTRATIONS = ("register_float_function", "register_half_function", "float_function", "disable_casts")


def binary_cross_entropy(source):
    """Return findings on ``F.binary_cross_entropy`` and ``nn.BCELoss`` of a ``Source``.

    None if the script registers ``sigmoid`` as a float32 function, or casts in the call.
    """
    if any(called(node) in _REGISTRATIONS for node in source.calls()):
        return []
    found, aliases = [], {each.local: each.name for each in source.imports if each.is_renamed}
    for call in source.calls():
        name = last_name(call.func)
        name = aliases.get(name, name)
        if name == "BCELoss" or (name == "binary_cross_entropy" and not _is_float(call.args[:1])):
            found.append(source.problem("half-binary-cross-entropy", call, name))
    return found


def _is_float(arguments):
    """Return whether an argument is cast in the call: ``binary_cross_entropy(scores.float(), …)``."""
    return any(called(node) in ("float", "double") for node in arguments)
