"""Answers a request for translations: check it, translate its texts in batches, return what it asks for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import HTTPException

from vaswani_transformer.errors import InputError, escape_controls, one_line
from vaswani_transformer.exit import print_error
from vaswani_transformer.languages import name_languages, shorten_codes
from vaswani_transformer.languages_vaswani_transformer import find_language
from vaswani_transformer.translator import Hypothesis, NotFiniteError, Translator, as_texts

from .batches import BATCH_CHARACTERS, BATCH_CHARACTERS_ON_GPU, Batcher, QueueFullError
from .fields import TranslationRequest
from .markup import join_html, split_html

Answer = dict[str, Any]


@dataclass(frozen=True)
class Limits:
    """The largest numbers of characters and texts in a request, and of characters in the queue."""

    characters: int = 5000
    texts: int = 100
    queue: int = 20_000


class Service:
    """A model that answers requests.

    source, targets: the languages as its tokens and records name them; requests may name them by other codes
    """

    def __init__(
        self,
        translator: Translator,
        source: str,
        targets: Sequence[str],
        limits: Limits,
        on_batch: Callable[[int, int, float], object],
    ):
        self.translator, self.limits = translator, limits
        self.source, self.targets = source, targets
        cores = translator.count_cores()
        if cores is not None and cores > 1:
            translator.find_hypotheses([], one_thread=True)  # loads what such a batch needs
        largest = BATCH_CHARACTERS_ON_GPU if cores is None else BATCH_CHARACTERS
        self.batcher = Batcher(self._find_hypotheses, limits.queue, on_batch, cores or 1, largest)

    def _find_hypotheses(self, texts: list[str], count: int, one_thread: bool) -> list[list[Hypothesis]]:
        return self.translator.find_hypotheses(texts, one_thread=one_thread, num_return_sequences=count)

    def list_languages(self) -> list[Answer]:
        source, *targets = shorten_codes([self.source, *self.targets])
        names = dict(zip([source, *targets], name_languages([self.source, *self.targets]), strict=True))
        return [{"code": code, "name": name, "targets": targets * (code == source)} for code, name in names.items()]

    async def answer(self, request: TranslationRequest) -> Answer:
        """Translate the texts of a request. Raises HTTPException."""
        source = check_language([self.source, "auto"], request.source)
        target = check_language(self.targets, request.target)
        request = request.model_copy(update={"source": source, "target": target})
        texts = request.q if isinstance(request.q, list) else [request.q]
        self._check_limits(request, texts)
        try:
            return await self._answer(request, texts)
        except QueueFullError:
            raise
        except InputError as error:
            raise HTTPException(400, f"Invalid request: {error}") from None
        except NotFiniteError as error:
            raise HTTPException(500, f"Cannot translate text: {str(error).partition(': ')[2]}") from None
        except Exception as error:
            print_error(f"error: a text cannot be translated: {type(error).__name__}: {one_line(str(error))[:500]}")
            raise HTTPException(500, "Cannot translate text: the log of the server names the reason") from None

    def _check_limits(self, request: TranslationRequest, texts: list[str]) -> None:
        """Raise HTTPException for what the model or the limits do not allow."""
        if request.alternatives >= self.translator.search.num_beams:
            raise HTTPException(
                400, f"Invalid request: alternatives is {request.alternatives}; the limit is the number of beams minus "
                f"1, {self.translator.search.num_beams - 1}"
            )  # fmt: skip
        if request.attention and (request.format == "html" or not hasattr(self.translator, "model")):
            raise HTTPException(400, "Invalid request: attention needs plain text and a server that runs torch")
        if len(texts) > self.limits.texts:
            raise HTTPException(413, f"the request has {len(texts)} texts; the limit is {self.limits.texts}")
        if (characters := sum(map(len, texts))) > self.limits.characters:
            raise HTTPException(
                413, f"the request has {characters:,} characters; the limit is {self.limits.characters:,}"
            )

    async def _answer(self, request: TranslationRequest, texts: list[str]) -> Answer:
        count = 1 + request.alternatives
        if request.format == "html":
            found = await self._translate_html(texts, request.target, count)
        else:
            found = await self.batcher.translate(self._with_target(as_texts(texts, "text"), request.target), count)
        maps: list[Answer] = []
        if request.attention:
            sources = self._with_target(texts, request.target)
            maps = [await self._attention(text, best.text) for text, (best, *_) in zip(sources, found, strict=True)]

        def shaped(values: list[Any]) -> Any:
            """Return a list if the request has a list of texts."""
            return values if isinstance(request.q, list) else values[0]

        answer: Answer = {"translatedText": shaped([best.text for best, *_ in found])}
        if request.source == "auto":
            (source,) = shorten_codes([self.source])
            answer["detectedLanguage"] = shaped([{"language": source, "confidence": 0.0} for _ in texts])
        if request.alternatives:
            answer["alternatives"] = shaped([[other.text for other in others] for _, *others in found])
        if request.scores:
            answer["scores"] = shaped([[hypothesis.score for hypothesis in each] for each in found])
        if request.attention:
            answer["attention"] = shaped(maps)
        return answer

    def _with_target(self, texts: list[str], target: str) -> list[str]:
        """Put the token of the target language in front of texts, if the model has such tokens: a batch has several."""
        languages = self.translator.languages
        if not languages.are_needed:
            return texts
        starts = [len(text) - len(text.lstrip()) for text in texts]
        token = languages.find(target)
        return [
            f"{text[:start]}{token} {text[start:]}" if text[start:] else text
            for text, start in zip(texts, starts, strict=True)
        ]

    async def _attention(self, source: str, target: str) -> Answer:
        """Return the attention of the last layer, averaged over its heads: a row for each token of the translation."""
        from vaswani_transformer.attention_maps import attention_maps

        translator: Any = self.translator
        arguments = (translator.model, translator.tokenizer, source, target, translator.target_tokenizer)
        maps = await self.batcher.in_thread(lambda: attention_maps(*arguments))
        return {"source": maps.source, "target": maps.predicted, "weights": maps.cross[-1].mean(0).tolist()}

    async def _translate_html(self, pages: list[str], target: str, count: int) -> list[list[Hypothesis]]:
        """Translate the pieces of text between tags; the k-th best of all pieces make the k-th best page."""
        split = [split_html(page) for page in pages]
        texts = as_texts([piece for pieces in split for piece, is_text in pieces if is_text], "piece of text")
        found = iter(await self.batcher.translate(self._with_target(texts, target), count))
        translated: list[list[Hypothesis]] = []
        for pieces in split:
            of_page = [next(found) if is_text else None for _, is_text in pieces]
            depth = min((len(each) for each in of_page if each is not None), default=1)
            translated.append([join_page(pieces, of_page, k) for k in range(depth)])
        return translated


def check_language(known: Sequence[str], code: str) -> str:
    """Return the language that a code means. Raises HTTPException if it is none of the known ones."""
    position = find_language(known, code)
    if position is None:
        raise HTTPException(400, f"{escape_controls(code[:40])} is not supported; GET /languages lists the languages")
    return known[position]


def join_page(pieces: list[tuple[str, bool]], of_page: list[list[Hypothesis] | None], k: int) -> Hypothesis:
    """Return the page with the k-th best translation of each piece of text; scores are summed."""
    chosen = [each[k] if each else None for each in of_page]
    page = join_html([(each.text, True) if each else piece for piece, each in zip(pieces, chosen, strict=True)])
    translated = [each for each in chosen if each]
    tokens = [token for each in translated for token in each.tokens]
    return Hypothesis(page, sum(each.score for each in translated), tokens)
