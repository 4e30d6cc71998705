"""Whose conversion of a Marian model is Marian's function? Ours, transformers' and CTranslate2's, on Marian's words.

    python -m benchmarks.conversion_marian tests/fixtures/marian tests/fixtures/marian-spm

Each folder holds a checkpoint and `expected.npz`: the hypotheses of Marian 1.12.42 and the log-probabilities that it
prints for their words, with five digits, so that 5e-6 is the smallest difference that can be seen. transformers no
longer ships its converter: MarianMTModel is filled here as that did, with the same tensors and epsilon.
"""

import csv
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from conversion.build import build_model
from conversion.description import OUTPUT_BIAS, SOURCE, TARGET, Description
from conversion.reasons import Reasons
from conversion.rename import rename
from conversion.toolkits import hugging_face, marian
from vaswani_transformer.errors import UnavailableError, exit_cleanly

app = typer.Typer(add_completion=False, rich_markup_mode=None)
# (source ids, target ids) -> log-probabilities of the target's tokens
Scorer = Callable[[list[int], list[int]], np.ndarray]


@app.command(help="Compare three conversions of Marian checkpoints with the scores that Marian prints.")
def main_command(
    folders: Annotated[list[Path], typer.Argument(help="Folders with model.npz and expected.npz.")],
    csv_file: Annotated[Path | None, typer.Option("--csv", help="A file for the rows.")] = None,
) -> None:
    from training.record import commit, hardware

    torch.set_num_threads(1)
    rows = []
    for folder in folders:
        pairs = list(marians_words(folder))
        found = {}
        for name, scorer in (("ours", ours), ("transformers", transformers), ("ctranslate2", ctranslate2)):
            with scorer(folder) as score:
                differences = np.concatenate(
                    [np.abs(score(source, target) - theirs) for source, target, theirs in pairs]
                )
            found[name] = differences
        for name, differences in found.items():
            largest, mean = differences.max(), differences.mean()
            ratio = largest / found["ours"].max()
            print(
                f"{folder.name:14} {name:13} {len(differences):5d} words   largest {largest:.1e}   mean {mean:.1e}   "
                f"{ratio:8.1f} times ours"
            )
            rows.append([folder.name, name, len(differences), f"{largest:.3e}", f"{mean:.3e}", f"{ratio:.1f}"])
    if csv_file is not None:
        with csv_file.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            names = "date commit command hardware checkpoint conversion words largest mean times_ours"
            writer.writerow(names.split())
            command = f"python -m benchmarks.conversion_marian {' '.join(folder.name for folder in folders)}"
            about = [date.today().isoformat(), commit(), command, hardware()]
            writer.writerows([*about, *row] for row in rows)


def marians_words(folder: Path) -> Iterator[tuple[list[int], list[int], np.ndarray]]:
    """Source ids, a hypothesis, and the log-probabilities that Marian prints for its words."""
    with np.load(folder / "expected.npz") as expected:
        for row, hypotheses in enumerate(expected["hyp_ids"].tolist()):
            source = expected["src_ids"][row][expected["src_mask"][row] == 1].tolist()
            for hypothesis, scores in zip(hypotheses, expected["hyp_word_scores"][row], strict=True):
                target = [id for id in hypothesis if id >= 0]
                if target[-1:] == [0]:  # not one that the longest length cut off
                    yield source, target, scores[: len(target)]


def read(folder: Path) -> Description:
    return marian.read(folder / "model.npz", Reasons(folder))


@contextmanager
def ours(folder: Path) -> Iterator[Scorer]:
    model = build_model(read(folder), Reasons(folder))
    yield of_torch(model, model.config.decoder_start_token_id)


@contextmanager
def transformers(folder: Path) -> Iterator[Scorer]:
    """MarianMTModel with a zero row for <pad>, from which it starts, after Marian's own."""
    from transformers import MarianConfig, MarianMTModel

    description = read(folder)
    tensors = rename(description.tensors, description.rules, Reasons(folder))
    options, size = description.config, len(description.vocabulary.target)
    with_pad = {name: torch.cat((tensors[name], torch.zeros(1, options["d_model"]))) for name in (SOURCE, TARGET)}
    names = "d_model encoder_layers decoder_layers encoder_attention_heads decoder_attention_heads encoder_ffn_dim"
    names += " decoder_ffn_dim activation_function"
    config = MarianConfig(
        **{name: options[name] for name in names.split()},
        vocab_size=size + 1,
        decoder_vocab_size=size + 1,
        pad_token_id=size,
        decoder_start_token_id=size,
        eos_token_id=0,
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        max_position_embeddings=512,
    )
    model = MarianMTModel(config).eval()
    state = {
        rule.theirs: tensors[rule.ours] for rule in hugging_face.layers(config.encoder_layers, config.decoder_layers)
    }
    state |= {
        "model.shared.weight": with_pad[SOURCE],
        "final_logits_bias": torch.cat((tensors[OUTPUT_BIAS], torch.zeros(1))).reshape(1, -1),
    }
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all("embed" in name or name == "lm_head.weight" for name in missing), (
        missing,
        unexpected,
    )
    model.tie_weights()
    yield of_torch(model, size, words=size)


def of_torch(model: Any, start: int, words: int | None = None) -> Scorer:
    """words: the vocabulary's own size, without the <pad> that its converter forbids"""

    @torch.inference_mode()
    def score(source: list[int], target: list[int]) -> np.ndarray:
        decoder_input = torch.tensor([[start, *target[:-1]]])
        logits = model(input_ids=torch.tensor([source]), decoder_input_ids=decoder_input, use_cache=False).logits
        logits = logits[0, :, :words].double().log_softmax(-1)
        return logits.gather(-1, torch.tensor(target)[:, None])[:, 0].numpy()

    return score


@contextmanager
def ctranslate2(folder: Path) -> Iterator[Scorer]:
    """CTranslate2's own converter, which reads a vocabulary as YAML and its configuration without padding."""
    try:
        from ctranslate2 import Translator
        from ctranslate2.converters import MarianConverter
    except ImportError:
        raise UnavailableError("ctranslate2 is not installed: pip install ctranslate2") from None
    vocabulary = read(folder).vocabulary
    with tempfile.TemporaryDirectory() as place, np.load(folder / "model.npz") as archive:
        arrays: dict[str, Any] = dict(archive)
        text = arrays["special:model.yml"].tobytes().rstrip(b"\0") + b"\0"
        arrays["special:model.yml"] = np.frombuffer(text, dtype=np.int8)
        np.savez(Path(place) / "model.npz", allow_pickle=False, **arrays)
        files = []
        for side, tokens in (("source", vocabulary.source), ("target", vocabulary.target)):
            files.append(str(Path(place) / f"{side}.yml"))
            Path(files[-1]).write_text("".join(f"{token}: {id}\n" for id, token in enumerate(tokens)), encoding="utf-8")
        MarianConverter(str(Path(place) / "model.npz"), files).convert(str(Path(place) / "out"))
        translator = Translator(str(Path(place) / "out"), device="cpu", compute_type="float32", intra_threads=1)

        def score(source: list[int], target: list[int]) -> np.ndarray:
            words = [vocabulary.source[id] for id in source[:-1]]  # it adds </s> to both
            result = translator.score_batch([words], [[vocabulary.target[id] for id in target[:-1]]])[0]
            return np.array(result.log_probs)

        yield score


if __name__ == "__main__":
    exit_cleanly(app)
