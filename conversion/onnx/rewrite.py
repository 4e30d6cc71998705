"""Visit the graphs of loops and branches, and remove what is unused."""

from collections import Counter
from collections.abc import Iterator

from onnx import GraphProto


def walk_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield the graphs of loops and branches in a graph, innermost first, and then the graph itself."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from walk_graphs(attribute.g)
    yield graph


def remove_unused(graph: GraphProto) -> None:
    """Remove unused nodes and initializers from a graph and its subgraphs."""
    bodies = list(walk_graphs(graph))
    reads = Counter(name for body in bodies for node in body.node for name in node.input)
    reads.update(value.name for values in (graph.input, *(body.output for body in bodies)) for value in values)
    for body in bodies:  # inner ones first
        for index, node in reversed(list(enumerate(body.node))):
            if not any(reads[name] for name in node.output):
                reads.subtract(node.input)
                del body.node[index]
        for index, tensor in reversed(list(enumerate(body.initializer))):
            if not reads[tensor.name]:
                del body.initializer[index]
