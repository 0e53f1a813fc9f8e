"""Which params a loss does not depend on.

Owns: ``params_out_of_graph``.
Must not touch: the graph.
The surprise: a walk with a list, not a recursion: graphs of deep networks are deeper than Python's stack.
"""


def params_out_of_graph(model, loss):
    """Return the (name, param) pairs of ``model`` that need gradients and that ``loss`` does not depend on."""
    reached, seen, waiting = set(), set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            reached.add(id(node.variable))
        waiting += [following for following, _ in node.next_functions]
    trained = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
    return [(name, param) for name, param in trained if id(param) not in reached]
