from onnx import ModelProto


def in_precision(graph: ModelProto, precision: str) -> ModelProto:
    return graph
