"""Register the model with transformers' Auto classes and pipelines, once both packages are imported, in either order.

`import vaswani_transformer` itself imports neither torch nor transformers, which take seconds: `--help` does not need
them, and the ONNX backend works where they are not installed.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType

# Registering imports these modules; it waits until none of them is half imported.
MODULES = ("configuration", "modeling", "pipeline")
AWAITED = ("transformers", *(f"{__package__}.{name}_vaswani_transformer" for name in MODULES))


class RegisterAfterImport(MetaPathFinder):
    """Find the awaited modules as Python does, and register the model when the import of the last one ends."""

    def __init__(self):
        self.unfinished = 0  # imports

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname in AWAITED else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            self.unfinished += 1
            try:
                execute(module)
            finally:
                self.unfinished -= 1
            if self.unfinished == 0 and sys.modules.get("transformers") is not None and self in sys.meta_path:
                sys.meta_path.remove(self)
                register()

        spec.loader.exec_module = execute_and_register
        return spec


def register_once_imported() -> None:
    """Register the model now if transformers is imported, else as soon as it is."""
    if sys.modules.get("transformers") is not None:
        register()
    else:
        sys.meta_path.insert(0, RegisterAfterImport())


def register() -> None:
    """Register the model with AutoConfig, AutoModel, AutoModelForSeq2SeqLM and `pipeline("translation")`.

    Does nothing without torch: transformers then has no models either.
    """
    if find_spec("torch") is None:
        return
    from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM

    from .configuration_vaswani_transformer import VaswaniTransformerConfig
    from .modeling_vaswani_transformer import VaswaniTransformerForConditionalGeneration, VaswaniTransformerModel
    from .pipeline_vaswani_transformer import register_pipeline

    AutoConfig.register("vaswani_transformer", VaswaniTransformerConfig, exist_ok=True)
    AutoModel.register(VaswaniTransformerConfig, VaswaniTransformerModel, exist_ok=True)
    AutoModelForSeq2SeqLM.register(VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration, exist_ok=True)
    register_pipeline()
