"""A backend in Python for Triton's server, which runs a graph as the server's ONNX Runtime backend does.

The server of the package nvidia-pytriton lacks that backend, a library of Triton's container.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import triton_python_backend_utils as triton  # pyright: ignore[reportMissingImports]: the server adds it to the path


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        return config

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        version = Path(args["model_repository"], args["model_version"])
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # warns about inputs with defaults
        self.session: Any = onnxruntime.InferenceSession(version / config["default_model_filename"], options)
        self.inputs, self.outputs = ([tensor["name"] for tensor in config[kind]] for kind in ("input", "output"))
        # The backend compares these names, without inputs that have defaults.
        graph_inputs = [tensor.name for tensor in self.session.get_inputs()]
        graph_outputs = [tensor.name for tensor in self.session.get_outputs()]
        if (self.inputs, self.outputs) != (graph_inputs, graph_outputs):
            raise triton.TritonModelException(f"the graph has the inputs {graph_inputs}, outputs {graph_outputs}")

    def execute(self, requests: list[Any]) -> list[Any]:
        batch, sizes = {}, []
        for name in self.inputs:
            arrays = [triton.get_input_tensor_by_name(request, name).as_numpy() for request in requests]
            sizes = [len(array) for array in arrays]
            joined = np.concatenate(arrays)
            batch[name] = convert_strings(bytes.decode, joined) if joined.dtype == object else joined
        answers: list[list[Any]] = [[] for _ in requests]
        for name, array in zip(self.outputs, self.session.run(self.outputs, batch), strict=True):
            array = convert_strings(str.encode, array) if array.dtype == object else array
            for answer, part in zip(answers, np.split(array, np.cumsum(sizes)[:-1]), strict=True):
                answer.append(triton.Tensor(name, part))
        return [triton.InferenceResponse(answer) for answer in answers]


def convert_strings(convert: Any, array: np.ndarray) -> np.ndarray:
    return np.array([convert(string) for string in array.ravel()], object).reshape(array.shape)
