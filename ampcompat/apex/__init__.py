"""The implementations of what ``import apex`` provides in addition to ``amp``.

The package that scripts import as ``apex`` is the folder ``site/apex``, made of re-exports; it is on ``sys.path`` only
if ``install`` or ``ampcompat run`` has put it there.
"""
