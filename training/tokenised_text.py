"""Read and tokenise the text of a recipe."""

from pathlib import Path
from typing import Any, NamedTuple

from vaswani_transformer.errors import InputError

from .corpus import Corpus, load_corpus, overlap
from .parallel_text import (
    HELD_OUT_EVERY,
    HELD_OUT_MOST,
    Sentences,
    parallel_texts,
    sentences_of,
    train_and_validation_texts,
)
from .recipe import Recipe
from .report import Reporter
from .tokenizer import load_tokenizers, tokenizer_sha256


class TokenisedText(NamedTuple):
    """The text of a recipe, tokenised."""

    tokenizer: Any
    target_tokenizer: Any  # None if the languages share one
    training: Corpus
    validation: Corpus | None
    validation_sentences: Sentences | None  # sources and references, if BLEU is measured during training

    def sha256s(self) -> dict[str, Any]:
        """Return hashes of the training text and the tokenizers, by name."""
        hashes = {"corpus sha256": self.training.sha256, "tokenizer sha256": tokenizer_sha256(self.tokenizer)}
        if self.target_tokenizer is not None:
            hashes["target tokenizer sha256"] = tokenizer_sha256(self.target_tokenizer)
        return hashes


def read_text(recipe: Recipe, output: Path, reporter: Reporter) -> TokenisedText:
    """Read, tokenise and cache the text; warn about pairs of the validation and test texts that are trained on."""
    texts = train_and_validation_texts(recipe)
    if texts.held_out:
        reporter.say(
            f"no validation text {' + '.join(recipe.validation)}: every {HELD_OUT_EVERY}th training pair is held out, "
            f"at most {HELD_OUT_MOST:,} (--validation NAME uses a text of your own, --validation '[]' disables "
            "validation)"
        )
    try:
        test = parallel_texts(recipe, recipe.test)
    except InputError as error:  # a shipped recipe with the user's own text: training needs no test set
        reporter.say(
            f"warning: {error}; training continues and does not check whether test pairs are in the training text "
            "(--test '[]' skips the check)"
        )
        test = []
    tokenizer, target_tokenizer = load_tokenizers(recipe, output, texts.train, reporter.say)
    cache = Path(recipe.cache) if recipe.cache else output / "corpus"
    corpus, validation, in_test = (
        load_corpus(each, tokenizer, recipe, cache, reporter.say, target_tokenizer) if each else None
        for each in (texts.train, texts.validation, test)
    )
    assert corpus is not None
    for name, other in (("validation", validation), ("test", in_test)):
        if other is not None and (common := overlap(corpus, other)):
            reporter.say(f"warning: {common} of {len(other)} {name} pairs are also in the training text")
    sentences = None if recipe.bleu_every is None else sentences_of(texts.validation)
    return TokenisedText(tokenizer, target_tokenizer, corpus, validation, sentences)
