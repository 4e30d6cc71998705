"""Register the model with transformers' Auto classes and pipelines, once both packages are imported, in either order.

`import vaswani_transformer` itself imports neither torch nor transformers, which take seconds: `--help` does not need
them, and the ONNX backend works where they are not installed.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType

# `register` imports these modules, which must not be half imported then.
OURS = tuple(f"{__package__}.{name}_vaswani_transformer" for name in ("configuration", "modeling", "pipeline"))


class RegisterAfterImport(MetaPathFinder):
    """Register the model at the end of the import that imports transformers: a user's, or one of our modules'.

    As the first finder of `sys.meta_path`, it is asked for every module. It leaves the search to Python, and changes
    how the found modules are executed.
    """

    def __init__(self):
        self.running = 0  # imports of these modules: ours import each other and transformers

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in ("transformers", *OURS):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = partial(self.execute, spec.loader.exec_module)
        return spec

    def execute(self, exec_module: Callable[[ModuleType], None], module: ModuleType) -> None:
        """Execute a module as its loader does, and register the model if no import is running any more.

        Under `python -OO`, transformers prints on stdout, among the translations, that docstrings are missing.
        Otherwise stdout, which belongs to all threads, stays as it is.
        """
        with redirect_stdout(sys.stderr) if sys.flags.optimize > 1 else nullcontext():
            self.running += 1
            try:
                exec_module(module)
            finally:
                self.running -= 1
            if self.running == 0 and sys.modules.get("transformers") is not None and self in sys.meta_path:
                sys.meta_path.remove(self)
                register()


def register_once_imported() -> None:
    """Register the model now if transformers is imported, else as soon as it is."""
    if sys.modules.get("transformers") is not None:
        register()
    else:
        sys.meta_path.insert(0, RegisterAfterImport())


def register() -> None:
    """Register the model with AutoConfig, AutoModel, AutoModelForSeq2SeqLM and `pipeline("translation")`.

    The last needs the only change to transformers itself, see `register_pipeline`. Does nothing without torch:
    transformers then has no models either.
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
