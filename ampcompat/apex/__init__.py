"""The annex: what ``apex`` means, and nowhere else.

Owns: the alias (``site/``), how it gets on ``sys.path``, the look-alikes of Apex's module state.
Must not touch: torch's namespaces.
The surprise: this is ``ampcompat.apex``, the implementations; the package that scripts import as ``apex`` is the folder
``site/apex``, made of re-exports, which is on nobody's path until it is installed.
"""
