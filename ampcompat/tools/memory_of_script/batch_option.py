"""Finds the option of a script that sets its batch size. Does not need torch."""

import os
import re

#: An option's name: --batch-size, --train_batch_size, --batch; not those of evaluation.
_NAME = r"--(?!eval|test|val)(?:\w+[-_])*?(?:batch[-_]?size|batch)"
_DECLARED = re.compile(r"add_argument\((?:\s*[\"']-\w+[\"'],)*\s*[\"'](" + _NAME + r")[\"']")


def with_batch_placeholder(command, placeholder):
    """Return (the option, the command with ``placeholder`` as its value), or (None, ``command``).

    Args:
        command: ``[script, argument, …]``, or ``["-m", module, argument, …]``.
    """
    for place, each in enumerate(command[1:], 1):
        name, equals, _ = each.partition("=")
        if re.fullmatch(_NAME, name) and equals:
            return name, command[:place] + [f"{name}={placeholder}"] + command[place + 1 :]
        if re.fullmatch(_NAME, name) and place + 1 < len(command):
            return name, command[: place + 1] + [placeholder] + command[place + 2 :]
    declared = _DECLARED.search(_source(command[0]))
    return (declared.group(1), command + [declared.group(1), placeholder]) if declared else (None, command)


def _source(path):
    if not os.path.isfile(path):
        return ""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
