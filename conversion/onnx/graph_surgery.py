"""Edit ONNX graphs: visit nested graphs, rename values, remove unused nodes."""

from collections import Counter
from collections.abc import Iterator

from onnx import GraphProto, helper

# Smaller tensors are constants of the operators, not weights.
SMALLEST_WEIGHT = 1024


def graphs_of(graph: GraphProto) -> Iterator[GraphProto]:
    """Yield the graphs of loops and branches inside a graph, innermost first, and the graph itself last."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs_of(attribute.g)
    yield graph


def rename(graph: GraphProto, prefix: str, inputs: list[str], outputs: list[str]) -> None:
    """Rename every value in place: inputs and outputs as given, the others by a prefix."""
    assert len(graph.input) == len(inputs) and len(graph.output) == len(outputs), "the exporter dropped an input"
    names = {value.name: name for value, name in zip(graph.input, inputs, strict=True)}
    duplicates = []  # outputs that are inputs or other outputs as well
    for value, name in zip(graph.output, outputs, strict=True):
        if value.name in names:
            duplicates.append(helper.make_node("Identity", [names[value.name]], [name]))
        else:
            names[value.name] = name
        value.name = name
    for value, name in zip(graph.input, inputs, strict=True):
        value.name = name
    for tensor in graph.initializer:
        tensor.name = names.setdefault(tensor.name, prefix + tensor.name)
    for node in graph.node:
        assert not any(attribute.HasField("g") for attribute in node.attribute), "nested graphs are not renamed"
        node.name = prefix + node.name
        for values in (node.input, node.output):
            values[:] = [names.get(value, prefix + value) if value else "" for value in values]
    graph.node.extend(duplicates)


def remove_unused(graph: GraphProto) -> None:
    """Remove nodes and tensors that nothing reads, also from the graphs of loops and branches inside."""
    bodies = list(graphs_of(graph))
    reads = Counter(name for body in bodies for node in body.node for name in node.input)
    reads.update(value.name for values in (graph.input, *(body.output for body in bodies)) for value in values)
    for body in bodies:  # inner ones first
        for place, node in reversed(list(enumerate(body.node))):
            if not any(reads[name] for name in node.output):
                reads.subtract(node.input)
                del body.node[place]
        for place, tensor in reversed(list(enumerate(body.initializer))):
            if not reads[tensor.name]:
                del body.initializer[place]
