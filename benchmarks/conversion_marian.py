"""How far are converted Marian checkpoints from Marian's own scores?

    python -m benchmarks.conversion_marian tests/fixtures/marian tests/fixtures/marian-spm

Row:   a checkpoint and a conversion of it.
Unit:  absolute difference from the log-probability that Marian 1.12.42 prints for a word, the largest and the mean.
Peers: the converter that transformers used to ship, and CTranslate2's.

Each folder has a checkpoint and `expected.npz`: hypotheses of Marian with the log-probabilities of their words, printed
with five digits, so 5e-6 is the smallest visible difference. For transformers, a MarianMTModel is filled as its former
converter did, with the same tensors and epsilon.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from conversion.build import build_model
from conversion.layout import OUTPUT_BIAS, SOURCE
from conversion.options import Reasons
from conversion.rename import rename_to_ours
from conversion.toolkit import Description
from conversion.toolkits import hugging_face, marian

from .harness import Row, report, run
from .options import Record
from .systems.decoding import import_ctranslate2
from .systems.marian import marian_like

# (source ids, target ids) -> log-probabilities of the target's tokens
Scorer = Callable[[list[int], list[int]], np.ndarray]


def compare(
    folders: Annotated[list[Path], typer.Argument(help="Folders with model.npz and expected.npz.")],
    record: Record = None,
) -> None:
    """Compare three conversions of Marian checkpoints with Marian's own scores."""
    torch.set_num_threads(1)
    report([row for folder in folders for row in differences(folder)], record)


def differences(folder: Path) -> Iterator[Row]:
    """Compare the conversions with Marian's scores; yield a row for each."""
    description = marian.read(folder / "model.npz", Reasons(folder))
    hypotheses = list(word_scores(folder))
    found: dict[str, np.ndarray] = {}  # errors by conversion
    for name, scorer_of in SCORERS.items():
        score = scorer_of(folder, description)
        found[name] = np.concatenate([np.abs(score(source, target) - given) for source, target, given in hypotheses])
    for name, errors in found.items():
        yield {
            "checkpoint": folder.name,
            "conversion": name,
            "words": len(errors),
            "max_error": f"{errors.max():.3e}",
            "mean_error": f"{errors.mean():.3e}",
            "error_vs_ours": f"{errors.max() / found['ours'].max():.1f}",
        }


def word_scores(folder: Path) -> Iterator[tuple[list[int], list[int], np.ndarray]]:
    """Yield source ids, the ids of a hypothesis, and the log-probabilities that Marian prints for its words."""
    with np.load(folder / "expected.npz") as expected:
        for row, hypotheses in enumerate(expected["hyp_ids"].tolist()):
            source = expected["src_ids"][row][expected["src_mask"][row] == 1].tolist()
            for hypothesis, scores in zip(hypotheses, expected["hyp_word_scores"][row], strict=True):
                target = [id for id in hypothesis if id >= 0]
                if target[-1:] == [0]:  # skip hypotheses cut off by the length limit
                    yield source, target, scores[: len(target)]


# ---- conversions: (folder, the checkpoint that was read from it) -> its scorer -----------------------------------


def our_scorer(folder: Path, description: Description) -> Scorer:
    model = build_model(description, Reasons(folder))
    return torch_scorer(model, model.config.decoder_start_token_id)


def transformers_scorer(folder: Path, description: Description) -> Scorer:
    """Fill a MarianMTModel; decoding starts from a zero row for <pad>, which is appended."""
    tensors = rename_to_ours(description.tensors, description.rules, Reasons(folder))
    size = len(description.vocabulary.target)
    ids = {"vocab_size": size + 1, "pad_token_id": size, "decoder_start_token_id": size, "eos_token_id": 0}
    model = marian_like(description.config | ids, scale_embedding=True, max_position_embeddings=512).eval()
    state = {rule.theirs: tensors[rule.ours] for rule in hugging_face.make_layer_rules(model.config.to_dict())}
    state["model.shared.weight"] = torch.cat((tensors[SOURCE], torch.zeros(1, model.config.d_model)))
    state["final_logits_bias"] = torch.cat((tensors[OUTPUT_BIAS], torch.zeros(1))).reshape(1, -1)
    missing, unexpected = model.load_state_dict(state, strict=False)
    left = [*unexpected, *(name for name in missing if "embed" not in name and name != "lm_head.weight")]
    assert not left, left
    model.tie_weights()
    return torch_scorer(model, size, words=size)


def torch_scorer(model: Any, start: int, words: int | None = None) -> Scorer:
    """Return the scorer of a torch model. words: size of the vocabulary without <pad>, which Marian does not have"""

    @torch.inference_mode()
    def score(source: list[int], target: list[int]) -> np.ndarray:
        decoder_input = torch.tensor([[start, *target[:-1]]])
        logits = model(input_ids=torch.tensor([source]), decoder_input_ids=decoder_input, use_cache=False).logits
        logits = logits[0, :, :words].double().log_softmax(-1)
        return logits.gather(-1, torch.tensor(target)[:, None])[:, 0].numpy()

    return score


def ctranslate2_scorer(folder: Path, description: Description) -> Scorer:
    """Run CTranslate2's converter, which needs a vocabulary in YAML and a configuration without padding bytes."""
    library = import_ctranslate2()
    vocabulary = description.vocabulary
    with tempfile.TemporaryDirectory() as temporary, np.load(folder / "model.npz") as archive:
        arrays: dict[str, Any] = dict(archive)
        text = arrays["special:model.yml"].tobytes().rstrip(b"\0") + b"\0"
        arrays["special:model.yml"] = np.frombuffer(text, dtype=np.int8)
        np.savez(f"{temporary}/model.npz", allow_pickle=False, **arrays)
        files = []
        for side, tokens in (("source", vocabulary.source), ("target", vocabulary.target)):
            files.append(f"{temporary}/{side}.yml")
            Path(files[-1]).write_text("".join(f"{token}: {id}\n" for id, token in enumerate(tokens)), encoding="utf-8")
        library.converters.MarianConverter(f"{temporary}/model.npz", files).convert(f"{temporary}/out")
        translator = library.Translator(f"{temporary}/out", device="cpu", compute_type="float32", intra_threads=1)

    def score(source: list[int], target: list[int]) -> np.ndarray:
        words = [vocabulary.source[id] for id in source[:-1]]  # CTranslate2 adds </s> to both sides
        result = translator.score_batch([words], [[vocabulary.target[id] for id in target[:-1]]])[0]
        return np.array(result.log_probs)

    return score


SCORERS = {"ours": our_scorer, "transformers": transformers_scorer, "ctranslate2": ctranslate2_scorer}

if __name__ == "__main__":
    run(compare)
