"""The implementations of what ``import apex`` provides beside ``amp``.

The package that scripts import as ``apex`` is the folder ``site/apex``, made of re-exports; it is on ``sys.path`` only
where ``install`` or ``python -m ampcompat run`` has put it.
"""
