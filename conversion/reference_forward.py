"""The models of torch and transformers, which are always installed, for the comparison at the end of a conversion.

Options and tensors come from unpickle.py and the readers, which have checked them.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import FSMTForConditionalGeneration, MarianMTModel
from transformers.utils import logging

from .description import OUTPUT, OUTPUT_BIAS, SOURCE, TARGET, Description
from .layout import DECODER_POSITIONS, ENCODER_POSITIONS
from .rename import STACKS
from .toolkits import hf_fsmt, hf_marian, torch_nn
from .unpickle import load_checkpoint

# (source ids, decoder's input ids), both (1, length) -> logits (1, target, vocabulary)
Forward = Callable[[Tensor, Tensor], Tensor]

TABLE_ROWS = 1024


def torch_forward(description: Description) -> Forward:
    """nn.Transformer with the file's tensors; embeddings, positions and output around it as the reader found them."""
    config, tensors = description.config, description.tensors
    around = {rule.ours: tensors[rule.theirs].float() for rule in description.rules if rule.theirs in tensors}
    with torch.device("meta"):
        module = nn.Transformer(
            d_model=config["d_model"],
            nhead=config["encoder_attention_heads"],
            num_encoder_layers=config["encoder_layers"],
            num_decoder_layers=config["decoder_layers"],
            dim_feedforward=config["encoder_ffn_dim"],
            activation=config["activation_function"],
            norm_first=config["norm_position"] == "pre",
            layer_norm_eps=config["layer_norm_eps"],
            bias=config["attention_bias"],
            batch_first=True,
        )
    for stack in STACKS:
        if not config[f"{stack}_final_norm"]:
            getattr(module, stack).norm = None
    weights = torch_nn.without_prefix(torch_nn.state_dict_of(load_checkpoint(description.path)))
    module.load_state_dict({name: weights[name] for name in module.state_dict()}, assign=True)
    module.float().eval()
    table = description.positions.table(TABLE_ROWS, config["d_model"]).float()

    def embedded(ids: Tensor, embedding: str, positions: str) -> Tensor:
        scale = 1.0 if embedding in description.unscaled else config["d_model"] ** 0.5
        return around[embedding][ids] * scale + around.get(positions, table)[: ids.shape[1]]

    def forward(ids: Tensor, target: Tensor) -> Tensor:
        source, target = embedded(ids, SOURCE, ENCODER_POSITIONS), embedded(target, TARGET, DECODER_POSITIONS)
        states = module(source, target, tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1]))
        return states @ around[OUTPUT].T + around.get(OUTPUT_BIAS, torch.zeros(()))

    return forward


def transformers_forward(description: Description) -> Forward:
    kind = MarianMTModel if description.toolkit == hf_marian.NAME else FSMTForConditionalGeneration
    logging.disable_progress_bar()
    model = kind.from_pretrained(description.path.parent, dtype=torch.float32, local_files_only=True).eval()
    # With its cache FSMT is not causal for several target tokens.
    return lambda ids, target: model(input_ids=ids, decoder_input_ids=target, use_cache=False).logits


FORWARDS: dict[str, Callable[[Description], Forward]] = {
    torch_nn.NAME: torch_forward,
    hf_marian.NAME: transformers_forward,
    hf_fsmt.NAME: transformers_forward,
}
