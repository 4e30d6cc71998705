"""Configuration of the Transformer of "Attention Is All You Need" (arXiv 1706.03762v7).

The defaults are the paper's base model. Field names follow MarianConfig. The comment on an option that is not in the
paper names the toolkit that needs it.
"""

import copy
from typing import TYPE_CHECKING, Any

import transformers

# Before the imports that fail on older versions with less helpful messages. The package requires a later version
# (pyproject.toml) than this code, which is published with every model.
if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 4):
    raise ImportError(f'transformers {transformers.__version__} is too old: pip install "transformers>=5.4"')

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

if TYPE_CHECKING:  # transformers downloads and saves the files that relative imports name, executed or not
    from .modeling_vaswani_transformer import VaswaniTransformerModel  # noqa: F401
    from .pipeline_vaswani_transformer import VaswaniTransformerTranslationPipeline  # noqa: F401
    from .search_vaswani_transformer import SearchSettings  # noqa: F401
    from .sentences_vaswani_transformer import split_text  # noqa: F401

# The newest version of transformers with which the tests have passed.
NEWEST_TRANSFORMERS = "5.24.0"


def incompatible_transformers(found: str) -> str:
    """Return the error message for a call or a result that this code does not expect of transformers."""
    remedy = f'pip install "transformers=={NEWEST_TRANSFORMERS}", or update the code of the model'
    if transformers.__version__ == NEWEST_TRANSFORMERS:
        remedy = "check the arguments, or report a bug of the model's code"
    return f"{found}, which the model's code does not expect of transformers {transformers.__version__}: {remedy}"


# Entries of config.json by which transformers finds the code without this package. Its own registration writes only
# the entry of the saved class, and AutoModel then fails.
AUTO_MAP = {
    "AutoConfig": "configuration_vaswani_transformer.VaswaniTransformerConfig",
    "AutoModel": "modeling_vaswani_transformer.VaswaniTransformerModel",
    "AutoModelForSeq2SeqLM": "modeling_vaswani_transformer.VaswaniTransformerForConditionalGeneration",
}
CUSTOM_PIPELINES = {
    "translation": {
        "impl": "pipeline_vaswani_transformer.VaswaniTransformerTranslationPipeline",
        "pt": ["AutoModelForSeq2SeqLM"],
        "type": "text",
    }
}

# Table 3, "variations on the Transformer architecture": the differences of each row from the base model. The rows for
# label smoothing (D-ls...) change only training: `label_smoothing` in a recipe.
PRESETS: dict[str, dict[str, Any]] = {
    "base": {},
    "A-h1": {"encoder_attention_heads": 1, "decoder_attention_heads": 1},
    "A-h4": {"encoder_attention_heads": 4, "decoder_attention_heads": 4},
    "A-h16": {"encoder_attention_heads": 16, "decoder_attention_heads": 16},
    "A-h32": {"encoder_attention_heads": 32, "decoder_attention_heads": 32},
    "B-dk16": {"d_k": 16, "d_v": 64},
    "B-dk32": {"d_k": 32, "d_v": 64},
    "C-N2": {"encoder_layers": 2, "decoder_layers": 2},
    "C-N4": {"encoder_layers": 4, "decoder_layers": 4},
    "C-N8": {"encoder_layers": 8, "decoder_layers": 8},
    "C-d256": {"d_model": 256},
    "C-d1024": {"d_model": 1024},
    "C-ff1024": {"encoder_ffn_dim": 1024, "decoder_ffn_dim": 1024},
    "C-ff4096": {"encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096},
    "D-dropout0.0": {"dropout": 0.0},
    "D-dropout0.2": {"dropout": 0.2},
    "D-ls0.0": {},
    "D-ls0.2": {},
    "E-learned-positions": {"position_embedding_type": "learned", "max_position_embeddings": 256},
    "big": {
        "d_model": 1024,
        "encoder_attention_heads": 16,
        "decoder_attention_heads": 16,
        "encoder_ffn_dim": 4096,
        "decoder_ffn_dim": 4096,
        "dropout": 0.3,
    },
}
# Section 6.1: the English-French models share 32,000 word pieces; the big one trains with dropout 0.1.
PRESETS["base-en-fr"] = {"vocab_size": 32000}
PRESETS["big-en-fr"] = PRESETS["big"] | {"vocab_size": 32000, "dropout": 0.1}
# Section 6.3, constituency parsing: four layers of d_model 1024, 16K tokens (WSJ only) or 32K (semi-supervised).
PRESETS["parsing-wsj"] = {"encoder_layers": 4, "decoder_layers": 4, "d_model": 1024, "vocab_size": 16000}
PRESETS["parsing-semi-supervised"] = PRESETS["parsing-wsj"] | {"vocab_size": 32000}

LONGEST_SEQUENCE = 10_000_000

# Upper bounds that catch typing errors before memory is allocated.
_LARGEST = (
    {"max_position_embeddings": LONGEST_SEQUENCE}
    | dict.fromkeys(("vocab_size", "decoder_vocab_size"), 10_000_000)
    | dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 1_000_000)
    | dict.fromkeys(("d_model", "d_k", "d_v"), 65_536)
    | dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4_096)
    | dict.fromkeys(("encoder_layers", "decoder_layers"), 1_000)
)


@strict
class VaswaniTransformerConfig(PreTrainedConfig):
    """Configuration of a [`VaswaniTransformerForConditionalGeneration`].

    Sizes, with the paper's symbols: `d_model`; `encoder_layers`, `decoder_layers` (N); `encoder_attention_heads`,
    `decoder_attention_heads` (h); `d_k`, `d_v` (default d_model / h); `encoder_ffn_dim`, `decoder_ffn_dim` (d_ff);
    `dropout` (P_drop). Beam size, length penalty and maximum length belong to the generation config.

    To add a field, write it and its check here, and name it in SIZES or SWITCHES of the package's model_folder.py: what
    exports, averages, conversions and cards compare.

    Raises `ValueError` naming the field for a value out of range, and huggingface_hub's `StrictDataclassError` for a
    value of the wrong type.

    >>> VaswaniTransformerConfig.from_preset("big", vocab_size=32000).d_model
    1024
    """

    model_type = "vaswani_transformer"
    keys_to_ignore_at_inference = ["cache", "past_key_values"]  # its names since transformers 5.24 and before
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "encoder_attention_heads",
        "num_hidden_layers": "encoder_layers",
    }

    vocab_size: int = 37000
    d_model: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    encoder_attention_heads: int = 8
    decoder_attention_heads: int = 8
    d_k: int | None = None
    d_v: int | None = None
    encoder_ffn_dim: int = 2048
    decoder_ffn_dim: int = 2048
    activation_function: str = "relu"  # a name in transformers' ACT2FN, such as "gelu" or "silu"

    # Section 5.4 applies dropout to sub-layer outputs and to the sums of embeddings and positions. tensor2tensor's
    # transformer_base v2 and v3 also apply it to attention weights and inside the feed-forward network (0.1).
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0

    # Section 3.5: "sinusoidal", or "learned" as in Table 3 (E). tensor2tensor, fairseq and Marian use the base
    # 10000^(h/(h-1)) with h = d_model / 2; fairseq counts positions from 2.
    position_embedding_type: str = "sinusoidal"
    position_base: float | int = 10000.0
    position_offset: int = 0
    max_position_embeddings: int | None = None  # rows of a learned table (256 if None); sinusoids have no limit

    # Section 3.1 normalises after the residual sum ("post"). tensor2tensor's v2 and v3, OpenNMT-py and Sockeye use
    # "pre" with a final norm on top of each stack; torch.nn.Transformer has final norms with "post" too.
    norm_position: str = "post"
    encoder_final_norm: bool | None = None  # None: only with "pre"
    decoder_final_norm: bool | None = None
    layer_norm_eps: float = 1e-6  # as tensor2tensor, because the paper does not specify it; fairseq, torch: 1e-5

    attention_bias: bool = False  # the projections of Section 3.2.2 have none; fairseq and Marian do
    output_bias: bool = False  # Marian, OpenNMT-py, Sockeye

    # Section 3.4: one matrix for both embeddings and the pre-softmax transformation.
    decoder_vocab_size: int | None = None  # None: vocab_size
    separate_vocabularies: bool = False  # each language has its own tokenizer, as always if the sizes differ
    share_encoder_decoder_embeddings: bool = True
    tie_word_embeddings: bool = True

    use_cache: bool = True
    is_encoder_decoder: bool = True
    bos_token_id: int | None = 0
    decoder_start_token_id: int = 0
    pad_token_id: int | None = 1  # with 0, transformers 5.23 would pad finished beams with </s>
    eos_token_id: int | list[int] | None = 2

    def __post_init__(self, **kwargs):
        if self.decoder_vocab_size is None:
            self.decoder_vocab_size = self.vocab_size
        if self.position_embedding_type == "learned" and self.max_position_embeddings is None:
            self.max_position_embeddings = 256  # Table 3 (E), tensor2tensor's max_length
        if self.position_embedding_type == "sinusoidal":
            # Sinusoids have no maximum. Ported code may set one, and clients, such as transformers' run_translation.py,
            # compare it with a number.
            self.max_position_embeddings = LONGEST_SEQUENCE
        for stack in ("encoder", "decoder"):
            if getattr(self, f"{stack}_final_norm") is None:
                setattr(self, f"{stack}_final_norm", self.norm_position == "pre")
        if not __name__.startswith("transformers_modules."):
            # The package has its own code; transformers would require trust in the folder's.
            for entry in ("auto_map", "custom_pipelines"):
                kwargs.pop(entry, None)
        super().__post_init__(**kwargs)
        # Not in `validate_...` methods, whose errors are wrapped in a second exception.
        self._check_sizes()
        self._check_values()
        self._check_token_ids()

    @property
    def learned_positions(self) -> int | None:
        """Number of learned positions (`max_position_embeddings`), or None for sinusoids, which have no maximum."""
        return self.max_position_embeddings if self.position_embedding_type == "learned" else None

    @classmethod
    def from_preset(cls, name: str, **overrides) -> "VaswaniTransformerConfig":
        """Return the configuration of a model of the paper: a row of Table 3, "big" or another of `PRESETS`."""
        if name not in PRESETS:
            raise ValueError(f"preset {name!r} is not one of {', '.join(PRESETS)}")
        return cls(**PRESETS[name] | overrides)

    def save_pretrained(self, save_directory, push_to_hub: bool = False, **kwargs):
        """Save config.json and the code, so that every saved model also loads without this package."""
        saved = copy.copy(self)
        saved.auto_map, saved.custom_pipelines = dict(AUTO_MAP), CUSTOM_PIPELINES
        # transformers then copies this file and its relative imports.
        saved._auto_class = "AutoConfig"  # pyright: ignore[reportAttributeAccessIssue]  # only on the copy
        super(VaswaniTransformerConfig, saved).save_pretrained(save_directory, push_to_hub, **kwargs)

    def _require(self, holds: bool, field: str, rule: str):
        if not holds:
            name = field.removeprefix("_")
            raise ValueError(f"config field `{name}` is {getattr(self, field)!r}; {rule}")

    def _check_sizes(self):
        for field, largest in _LARGEST.items():
            size = getattr(self, field)
            self._require(size is None or 1 <= size <= largest, field, f"it must lie between 1 and {largest}")
        for stack in ("encoder", "decoder"):
            heads = getattr(self, f"{stack}_attention_heads")
            self._require(
                self.d_model % heads == 0 or None not in (self.d_k, self.d_v),
                "d_model",
                f"it must be divisible by the {heads} {stack} heads, or set `d_k` and `d_v`",
            )
        sinusoidal = self.position_embedding_type == "sinusoidal"
        self._require(self.d_model % 2 == 0 or not sinusoidal, "d_model", "sinusoids need an even number")
        self._require(
            self.decoder_vocab_size == self.vocab_size or not self.share_encoder_decoder_embeddings,
            "decoder_vocab_size",
            f"another size than `vocab_size` ({self.vocab_size}) needs `share_encoder_decoder_embeddings=False`",
        )
        self._require(
            not (self.separate_vocabularies and self.share_encoder_decoder_embeddings),
            "separate_vocabularies",
            "two vocabularies need `share_encoder_decoder_embeddings=False`",
        )

    def _check_values(self):
        for field, choices in {
            "position_embedding_type": ("sinusoidal", "learned"),
            "norm_position": ("post", "pre"),
            "activation_function": tuple(ACT2FN),
        }.items():
            self._require(getattr(self, field) in choices, field, f"it must be one of {', '.join(choices)}")
        for field in ("dropout", "attention_dropout", "activation_dropout"):
            self._require(0 <= getattr(self, field) < 1, field, "it must be at least 0 and less than 1")
        for field in ("layer_norm_eps", "position_base"):
            self._require(0 < getattr(self, field) < float("inf"), field, "it must be positive and finite")
        offsets = 0 <= self.position_offset <= LONGEST_SEQUENCE
        self._require(offsets, "position_offset", f"it must lie between 0 and {LONGEST_SEQUENCE}")
        # A config.json must not make transformers download and run the kernel "owner/name".
        attention = self._attn_implementation
        self._require(
            attention is None or (isinstance(attention, str) and "/" not in attention),
            "_attn_implementation",
            "it must be one of eager, sdpa, flash_attention_2, flash_attention_3, flex_attention (or call "
            "`model.set_attn_implementation` for a kernel from the Hub)",
        )

    def _check_token_ids(self):
        self._require(not isinstance(self.eos_token_id, list), "eos_token_id", "it must be a single token id")
        target = self.decoder_vocab_size or self.vocab_size
        for field in ("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id"):
            token_id = getattr(self, field)
            size = target if field == "decoder_start_token_id" else min(self.vocab_size, target)
            valid = token_id is None or 0 <= token_id < size
            self._require(valid, field, f"the ids of the vocabulary are 0 to {size - 1}")

    @property
    def has_two_vocabularies(self) -> bool:
        """Whether the decoder needs a tokenizer of its own; ModelFolder has the same rule, without torch."""
        return self.separate_vocabularies or self.decoder_vocab_size not in (None, self.vocab_size)

    def get_text_config(self, decoder=None, encoder=None) -> PreTrainedConfig:
        # transformers 5.17 reads the size of the target vocabulary from `get_text_config().vocab_size`.
        if decoder == encoder and self.decoder_vocab_size not in (None, self.vocab_size):
            target = copy.copy(self)
            target.vocab_size = self.decoder_vocab_size
            return target
        return super().get_text_config(decoder=decoder, encoder=encoder)


__all__ = ["PRESETS", "VaswaniTransformerConfig"]
