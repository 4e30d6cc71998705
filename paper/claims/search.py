"""Claims of section 6.1, measured on a finished run: beam size, alpha and averaged checkpoints."""

from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest

from training.checkpoints import list_regular_checkpoints
from training.final_model import average_weights
from vaswani_transformer import TorchTranslator
from vaswani_transformer.errors import InputError

from ..plots import make_panels, plot_curves, plot_intervals, set_log_x
from ..result_files import format_table
from ..verdicts import FAILS, HOLDS, UNSURE, estimate_mean, format_interval, judge, subtract
from .claim import Judgement, Measurements, Setting

BEAMS, ALPHAS = (1, 2, 4, 8, 16), (0.0, 0.3, 0.6, 1.0, 1.5)


def name_search(beam: int, alpha: float) -> str:
    return f"beam {beam}, alpha {alpha}"


def measure_beam_and_alpha(setting: Setting) -> Measurements:
    """Return {search: BLEU, its interval, and p of its difference from greedy search}."""
    translator = TorchTranslator.from_pretrained(setting.run)
    searches = dict.fromkeys([(beam, 0.6) for beam in BEAMS] + [(4, alpha) for alpha in ALPHAS])
    systems = {
        name_search(beam, alpha): translator.translate(
            setting.development.sources, num_beams=beam, length_penalty=alpha, split_sentences=False
        )
        for beam, alpha in searches
    }
    return {"bleu": compare_bleu(systems, setting.development.references)}


def judge_beam_and_alpha(measurements: Measurements) -> Judgement:
    bleu = measurements["bleu"]
    greedy, four = bleu[name_search(1, 0.6)], bleu[name_search(4, 0.6)]
    observed = HOLDS if four["bleu"] > greedy["bleu"] else FAILS
    judged = observed if four["p"] < 0.05 else UNSURE
    evidence = (
        f"BLEU is {greedy['bleu']:.2f} with greedy search (beam 1) and {four['bleu']:.2f} with beam 4 and alpha 0.6; "
        f"the paired bootstrap test gives p = {four['p']:.3f}"
    )
    figure, axes = make_panels(2)
    for axis, x, fixed, scores in (
        (axes[0], "beam size", "alpha 0.6", {beam: bleu[name_search(beam, 0.6)] for beam in BEAMS}),
        (axes[1], "alpha", "beam 4", {alpha: bleu[name_search(4, alpha)] for alpha in ALPHAS}),
    ):
        points = [(value, score["bleu"]) for value, score in scores.items()]
        plot_curves(axis, {f"with {fixed}": points}, x, "BLEU; p is against greedy search")
        for point, score in zip(points, scores.values(), strict=True):
            label = "greedy" if score["p"] is None else f"p = {score['p']:.3f}"
            axis.annotate(label, point, (0, 5), textcoords="offset points", fontsize=7, ha="center")
        axis.margins(0.12)
        axis.legend(fontsize=8, loc="lower right")
    set_log_x(axes[0], set(BEAMS))
    axes[1].sharey(axes[0])
    table = [
        {
            "search": name,
            "BLEU": f"{score['bleu']:.2f} ± {score['interval']:.2f}",
            "p, against greedy search": "" if score["p"] is None else f"{score['p']:.3f}",
        }
        for name, score in bleu.items()
    ]
    return Judgement(judged, evidence, figure, format_table(table))


def compare_bleu(systems: dict[str, list[str]], references: list[str]) -> dict[str, dict[str, Any]]:
    """Return the BLEU of each system and the p value of its difference from the first (paired bootstrap)."""
    metrics = {"BLEU": BLEU(references=[references], force=True)}
    _, columns = PairedTest(list(systems.items()), metrics, [references], "bs", 1000)()
    scores: list[Any] = columns["BLEU"]
    return {
        name: {"bleu": round(score.score, 3), "interval": score.ci and round(score.ci, 3), "p": score.p_value}
        for name, score in zip(systems, scores, strict=True)
    }


def measure_averaging(setting: Setting) -> Measurements:
    """Return BLEU of the last checkpoint and of the average, and the mean difference of their losses per sentence."""
    folders = list_regular_checkpoints(setting.run)[:5][::-1]
    if len(folders) < 2:
        raise InputError(f"--run {setting.run} has {len(folders)} checkpoints; averaging needs at least 2")
    nats: dict[str, list[float]] = {}
    systems: dict[str, list[str]] = {}
    translator, text = TorchTranslator.from_pretrained(setting.run), setting.development
    for name, chosen in (("last", folders[-1:]), (f"average of {len(folders)}", folders)):
        translator.model.load_state_dict(average_weights(chosen), strict=False)
        translator.model.tie_weights()
        scores = translator.score(text.sources, text.references)
        nats[name] = [-score.total / len(score.tokens) for score in scores]
        systems[name] = translator.translate(text.sources, split_sentences=False)
    last, average = nats.values()
    return {
        "bleu": compare_bleu(systems, text.references),
        "nats_difference": estimate_mean(subtract(average, last)),
        "checkpoints": [folder.name for folder in folders],
    }


def judge_averaging(measurements: Measurements) -> Judgement:
    difference, (last, average) = measurements["nats_difference"], measurements["bleu"].values()
    evidence = (
        f"the average's loss minus the last checkpoint's is {format_interval(difference, 4, signed=True)} nats per "
        f"token; BLEU is {last['bleu']:.2f} with the last checkpoint and {average['bleu']:.2f} with the average "
        f"(p = {average['p']:.2f})"
    )
    figure, (axis,) = make_panels()
    shown = {f"average of {len(measurements['checkpoints'])}, minus the last": difference}
    plot_intervals(axis, shown, "difference of the loss, nats per token\n(below 0: the average is better)", zero=True)
    return Judgement(judge(difference, expected_sign=-1), evidence, figure)
