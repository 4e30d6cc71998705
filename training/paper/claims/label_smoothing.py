"""The claim of section 5.4 about label smoothing, judged by the models of Table 3."""

from vaswani_transformer.errors import InputError
from vaswani_transformer.model_folder import read_json_object

from ..plots import intervals, panels
from ..table3 import compare_with_base
from ..verdicts import mean_interval, plus_minus, verdict
from .claim import Finding, Measurements, Setting

ROW = "D-ls0.0"


def measure_label_smoothing(setting: Setting) -> Measurements:
    """Return the differences that removing label smoothing makes in BLEU and log-perplexity, for each seed."""
    path = setting.output / "table3.json"
    difference = compare_with_base(read_json_object(path)["rows"] if path.is_file() else [], ROW)
    if not difference.seeds:
        raise InputError(
            f"{path} has no rows base and {ROW} with the same seed; run `vaswani-transformer paper table3 --rows "
            f"base,{ROW} --output {setting.output}` first"
        )
    return {
        "seeds_compared": difference.seeds,
        "bleu_difference": difference.bleu,
        "log_perplexity_difference": difference.log_perplexity,
    }


def judge_label_smoothing(measurements: Measurements) -> Finding:
    nats = mean_interval(measurements["log_perplexity_difference"])
    bleu = mean_interval(measurements["bleu_difference"])
    evidence = (
        f"without label smoothing, the log-perplexity changes by {plus_minus(nats, 3, signed=True)} nats per token and "
        f"BLEU by {plus_minus(bleu, signed=True)}"
    )
    figure, axes = panels(2)
    label = "without label smoothing, minus with it"
    intervals(axes[0], {label: nats}, "log-perplexity, nats per token\n(below 0: better without)", zero=True)
    intervals(axes[1], {label: bleu}, "BLEU\n(below 0: worse without)", zero=True)
    on_perplexity, on_bleu = (verdict(difference, expected_sign=-1) for difference in (nats, bleu))
    return Finding(f"perplexity: {on_perplexity}; BLEU: {on_bleu}", evidence, figure)
