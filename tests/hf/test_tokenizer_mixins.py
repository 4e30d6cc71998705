"""transformers' own tests of a tokenizer, run on the plain tokenizer.json that we train."""

# pyright: reportMissingImports=false
# conftest.py makes `tests`.

import shutil
import tempfile
import unittest

from tests.test_tokenization_common import TokenizerTesterMixin
from transformers import PreTrainedTokenizerFast

from vaswani_transformer.tokenization import train_tokenizer


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
