"""BLEU in five variants, chrF and chrF2++, and exact matches, all or some of them by kind."""

import re
from collections import defaultdict
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

from vaswani_transformer.languages_vaswani_transformer import split_code


def corpus_bleu(
    translations: list[str], references: list[str], lowercase: bool = False, tokenize: str = "13a"
) -> float:
    """Return sacreBLEU. tokenize: sacrebleu's tokenizer; "none" for text that is already tokenised"""
    # force: no warning about tokenised input, if a corpus has spaces before full stops.
    bleu = BLEU(lowercase=lowercase, tokenize=tokenize, force=True)
    return bleu.corpus_score(translations, [references]).score


def scores(
    translations: list[str], references: list[str], kinds: list[str] | None = None, language: str = "en"
) -> dict[str, Any]:
    """Return all scores of translations against one reference each.

    kinds: the kind of each sentence; by_kind then holds the numbers of sentences, BLEU, chrF2++ and exact matches
    bleu: sacreBLEU, the number to compare;  bleu_lowercase: sacreBLEU of lower-cased text
    bleu_tokenised: lower-cased and tokenised by Moses' scripts, as in papers on Multi30k; None without sacremoses
    bleu_as_written: whitespace-tokenised, for text that is already tokenised, as fairseq prints it for IWSLT
    bleu_compound_split: as in the paper's Table 2 (tensor2tensor's get_ende_bleu.sh): mteval-v13a's tokens, and every
        hyphen between letters is a token
    language: the translations' code, such as de, for Moses' rules
    """
    result: dict[str, Any] = {"sentences": len(references)}
    metrics = {"bleu": BLEU(force=True), "bleu_lowercase": BLEU(lowercase=True, force=True), "chrf": CHRF()}
    metrics["chrf_plus_plus"] = CHRF(word_order=2)
    for name, metric in metrics.items():
        result[name] = metric.corpus_score(translations, [references]).score
        result[f"{name}_signature"] = str(metric.get_signature())
    for name, tokenised in (
        ("bleu_tokenised", lambda text: tokenise_by_moses(text, language)),
        ("bleu_as_written", lambda text: text),
        ("bleu_compound_split", lambda text: [split_compounds(line) for line in text]),
    ):
        hypothesis_tokens, reference_tokens = tokenised(translations), tokenised(references)
        result[name] = corpus_bleu(hypothesis_tokens, reference_tokens, tokenize="none") if hypothesis_tokens else None
    result["exact_match"] = exact_match(translations, references)
    if kinds is not None:
        result["by_kind"] = scores_by_kind(translations, references, kinds)
    return result


def scores_by_kind(translations: list[str], references: list[str], kinds: list[str]) -> dict[str, dict[str, float]]:
    """Return the scores of each kind of sentence, in alphabetical order."""
    by_kind: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for kind, *pair in zip(kinds, translations, references, strict=True):
        by_kind[kind].append((pair[0], pair[1]))
    result = {}
    for kind, pairs in sorted(by_kind.items()):
        hypotheses, expected = map(list, zip(*pairs, strict=True))
        result[kind] = {
            "sentences": len(pairs),
            "bleu": corpus_bleu(hypotheses, expected),
            "chrf_plus_plus": CHRF(word_order=2).corpus_score(hypotheses, [expected]).score,
            "exact_match": exact_match(hypotheses, expected),
        }
    return result


def exact_match(translations: list[str], references: list[str]) -> float:
    """Return the share of translations that equal their reference, in percent."""
    return 100 * sum(a.strip() == b.strip() for a, b in zip(translations, references, strict=True)) / len(references)


def tokenise_by_moses(lines: list[str], language: str) -> list[str]:
    """Lower-case, normalise punctuation and tokenise like Multi30k's task1-tokenize.sh. Empty without sacremoses.

    language: sacremoses has rules for codes of two letters, and takes general ones for others, such as fra or fr-FR
    """
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ModuleNotFoundError:
        return []
    code, _ = split_code(language)
    normalizer, tokenizer = MosesPunctNormalizer(lang=code), MosesTokenizer(lang=code)
    return [" ".join(tokenizer.tokenize(normalizer.normalize(line.lower()))) for line in lines]


def split_compounds(text: str) -> str:
    """Tokenise, and write "rich-text" as "rich ##AT##-##AT## text": utils/get_ende_bleu.sh of tensor2tensor."""
    return re.sub(r"(\S)-(?=\S)", r"\1 ##AT##-##AT## ", Tokenizer13a()(text))


def format_scores(result: dict[str, Any]) -> str:
    """Format the scores as text."""
    rows = [
        f"BLEU {result['bleu']:.2f}   sacreBLEU, cased (it tokenises by mteval-v13a): {result['bleu_signature']}",
        f"BLEU {result['bleu_lowercase']:.2f}   sacreBLEU, lower-cased: {result['bleu_lowercase_signature']}",
        f"BLEU {result['bleu_tokenised']:.2f}   tokenised (Moses), lower-cased"
        if result["bleu_tokenised"] is not None
        else "BLEU   -     tokenised (Moses), lower-cased: pip install sacremoses",
        f"BLEU {result['bleu_compound_split']:.2f}   tokenised (13a), compounds split: the paper's Table 2",
        f"BLEU {result['bleu_as_written']:.2f}   whitespace-tokenised, for text that is already tokenised",
        f"chrF {result['chrf']:.2f}   {result['chrf_signature']}",
        f"chrF2++ {result['chrf_plus_plus']:.2f}   {result['chrf_plus_plus_signature']}",
        f"exact match {result['exact_match']:.1f} % of {result['sentences']} sentences",
    ]
    if by_kind := result.get("by_kind"):
        width = max(map(len, by_kind))
        rows.append(f"{'':{width}}  sentences   BLEU  chrF2++  exact match")
        for kind, part in by_kind.items():
            numbers = f"{part['bleu']:5.2f}    {part['chrf_plus_plus']:5.2f}      {part['exact_match']:5.1f} %"
            rows.append(f"{kind:{width}}  {part['sentences']:9}  {numbers}")
    return "\n".join(rows)
