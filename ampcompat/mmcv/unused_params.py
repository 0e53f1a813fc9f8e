"""Which params of a model a loss does not depend on."""


def params_not_in_graph(model, loss):
    """Return the (name, param) pairs of ``model`` that require gradients and are not in the graph of ``loss``."""
    in_graph, seen, waiting = set(), set(), [loss.grad_fn]
    while waiting:  # no recursion: graphs of deep networks are deeper than Python's stack
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            in_graph.add(id(node.variable))
        waiting += [function for function, _ in node.next_functions]
    trained = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
    return [(name, param) for name, param in trained if id(param) not in in_graph]
