"""Values of the scalar inputs of the single graph: the settings of the search, in the order of the graph."""

from typing import Any

import numpy as np

from vaswani_transformer.onnx_translator import as_search_inputs
from vaswani_transformer.search_settings import NO_MAXIMUM, SearchSettings, lookahead_of, search_settings_of


def search_inputs(
    search: SearchSettings, max_length: int = NO_MAXIMUM, num_return_sequences: int = 0
) -> dict[str, np.ndarray]:
    """Return a value of each input; that of early_stopping is a lookahead.  num_return_sequences: 0 for all"""
    return as_search_inputs(
        {
            "num_beams": search.num_beams,
            "max_length": max_length,
            "length_penalty": search.length_penalty,
            "min_length": 0,
            "num_return_sequences": num_return_sequences,
            "early_stopping": lookahead_of(search.early_stopping),
        }
    )


def default_inputs(generation_config: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the defaults of all inputs."""
    return search_inputs(search_settings_of(generation_config))
