"""transformers' own tests of a model, its configuration and a tokenizer, run on ours."""

# pyright: reportMissingImports=false, reportArgumentType=false, reportIncompatibleMethodOverride=false
# conftest.py makes `tests`; the tables are typed for transformers' own models; WithoutGenerate hides a method.

import shutil
import tempfile
import unittest
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast
from transformers.models.auto import modeling_auto

from vaswani_transformer import (
    VaswaniTransformerConfig,
    VaswaniTransformerForConditionalGeneration,
    VaswaniTransformerModel,
)
from vaswani_transformer.tokenization import train_tokenizer

# The mixins ask these tables which classes get labels and have a loss. They read them at import.
modeling_auto.MODEL_MAPPING_NAMES["vaswani_transformer"] = "VaswaniTransformerModel"
modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES["vaswani_transformer"] = (
    "VaswaniTransformerForConditionalGeneration"
)

from tests.test_configuration_common import ConfigTester  # noqa: E402
from tests.test_modeling_common import ModelTesterMixin, floats_tensor, ids_tensor  # noqa: E402, F401
from tests.test_tokenization_common import TokenizerTesterMixin  # noqa: E402
from tests.test_training_mixin import TrainingTesterMixin  # noqa: E402


class VaswaniTransformerTester:
    """A tiny configuration and inputs for it, under the names that the mixins expect."""

    causal_lm_class = VaswaniTransformerForConditionalGeneration
    base_model_class = VaswaniTransformerModel
    is_training = True
    batch_size = 3
    # Labels are made with seq_length: source and target are equally long.
    seq_length = encoder_seq_length = decoder_seq_length = key_length = 7
    vocab_size = 99
    hidden_size = 16
    num_hidden_layers = 2
    num_attention_heads = 4

    def __init__(self, parent: unittest.TestCase) -> None:
        self.parent = parent

    def get_config(self) -> VaswaniTransformerConfig:
        return VaswaniTransformerConfig(
            vocab_size=self.vocab_size,
            d_model=self.hidden_size,
            encoder_layers=self.num_hidden_layers,
            decoder_layers=self.num_hidden_layers,
            encoder_attention_heads=self.num_attention_heads,
            decoder_attention_heads=self.num_attention_heads,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            dropout=0.0,
        )

    def prepare_config_and_inputs_for_common(self) -> tuple[VaswaniTransformerConfig, dict[str, Any]]:
        # Ids from 4 on: padding within a sentence would be another test.
        source, target = (ids_tensor([self.batch_size, self.seq_length], self.vocab_size - 4) + 4 for _ in range(2))
        return self.get_config(), {
            "input_ids": source,
            "attention_mask": torch.ones_like(source),
            "decoder_input_ids": target,
            "decoder_attention_mask": torch.ones_like(target),
        }


class WithoutGenerate(VaswaniTransformerForConditionalGeneration):
    """Lets the overfitting test measure loss and gradients, and skip its generation (see below)."""

    @property
    def generate(self):
        raise AttributeError("generate")


class VaswaniTransformerModelTest(ModelTesterMixin, TrainingTesterMixin, unittest.TestCase):
    all_model_classes = (VaswaniTransformerModel, VaswaniTransformerForConditionalGeneration)
    is_encoder_decoder = True
    _tester: VaswaniTransformerTester

    def setUp(self) -> None:
        self._tester = VaswaniTransformerTester(self)
        self.config_tester = ConfigTester(self, config_class=VaswaniTransformerConfig, d_model=40)

    @property
    def model_tester(self) -> VaswaniTransformerTester:
        return self._tester

    def test_config(self) -> None:
        self.config_tester.run_common_tests()

    @unittest.skip("GenerationTesterMixin is not in the sdist: tests/test_generate.py and test_search.py instead")
    def test_generation_tester_mixin_inheritance(self) -> None:
        pass

    @unittest.skip("both names of the cache are arguments here, without a warning: tests/test_transformers_hooks.py")
    def test_bc_cache_name_forward(self) -> None:
        pass

    # The mixin prompts generate() as if the model were decoder-only: the first target token is the source (id 1, our
    # padding), and 0, our start token, is the end. Its thresholds on loss and gradients apply;
    # test_seq2seq_trainer.py translates a learnt batch.
    def _get_trainable_model_class(self) -> type[WithoutGenerate]:
        return WithoutGenerate


class SharedBytePairTokenizerTest(TokenizerTesterMixin, unittest.TestCase):
    tokenizer_class = PreTrainedTokenizerFast
    rust_tokenizer_class = PreTrainedTokenizerFast

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.mkdtemp()
        text = [cls.integration_test_input_string, "the lower newer widest words are lower and newer than these"] * 20
        train_tokenizer(text, vocab_size=300).save_pretrained(cls.folder)
        cls.from_pretrained_id = cls.folder
        super().setUpClass()

    @classmethod
    def tearDownClass(cls) -> None:
        super().tearDownClass()
        shutil.rmtree(cls.folder)

    def test_tokenize_special_tokens(self) -> None:
        """A typed control token is text, because our tokenizer is saved with `split_special_tokens`.

        Without this setting, transformers' own expectation holds.
        """
        self.assertGreater(len(self.get_tokenizer().tokenize("</s>")), 1)
        get_tokenizer = self.get_tokenizer
        self.get_tokenizer = lambda **settings: get_tokenizer(split_special_tokens=False, **settings)
        super().test_tokenize_special_tokens()
