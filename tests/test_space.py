"""hub/space without a browser: its imports, its versions, and the folder that `space` writes."""

import ast
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from hub.__main__ import main
from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration

SPACE = Path(__file__).parents[1] / "hub" / "space"


def test_the_requirements_list_every_imported_package():
    named = {re.split("[<>=]", line)[0] for line in (SPACE / "requirements.txt").read_text().split()}
    imported = set()
    for file in SPACE.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").split(".")[0])
    standard = set(sys.stdlib_module_names) | {file.stem for file in SPACE.glob("*.py")}
    packages = {"PIL": "pillow"}  # modules with another name than their package
    assert {packages.get(name, name) for name in imported - standard} == named


def test_the_readme_and_the_requirements_pin_the_same_gradio():
    front_matter = yaml.safe_load((SPACE / "README.md").read_text(encoding="utf-8").split("---\n")[1])
    assert front_matter["sdk"] == "gradio"
    assert f"gradio=={front_matter['sdk_version']}" in (SPACE / "requirements.txt").read_text().split()
    assert (SPACE / front_matter["app_file"]).is_file()


def test_a_written_space_names_its_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "space"
    main(["space", "someone/attention", "--model", "owner/model", "--revision", "v1", "--to-folder", str(out)])
    assert f"hf upload someone/attention {out} . --repo-type space" in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {path.name for path in SPACE.iterdir()} | {"model.json"}
    assert json.loads((out / "model.json").read_text()) == {"id": "owner/model", "revision": "v1"}
    _, front_matter, text = (out / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    fields = yaml.safe_load(front_matter)
    assert (fields["title"], fields["models"], fields["sdk"]) == ("attention", ["owner/model"], "gradio")
    assert text.startswith("\n# Attention, at work")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)], ids=str)
def test_the_steps_of_equation_1_end_in_the_weights_of_the_model(monkeypatch: pytest.MonkeyPatch, dtype, tolerance):
    monkeypatch.syspath_prepend(SPACE)
    from equation import recorded_projections, steps  # pyright: ignore[reportMissingImports]

    sizes = {"d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "attn_implementation": "eager"}
    config = VaswaniTransformerConfig.from_preset("base", vocab_size=50, **sizes)
    model = VaswaniTransformerForConditionalGeneration(config).to(dtype).eval()
    source, target = torch.randint(4, 50, (1, 7)), torch.randint(4, 50, (1, 5))
    with torch.no_grad(), recorded_projections(model) as projections:
        outputs = model(source, decoder_input_ids=target, output_attentions=True, use_cache=False)
    kinds = {"encoder": outputs.encoder_attentions, "decoder": outputs.decoder_attentions}
    for kind, layers in (kinds | {"cross": outputs.cross_attentions}).items():
        for weights, values in zip(layers, projections[kind], strict=True):
            for head in range(config.encoder_attention_heads):
                found = steps(*(values[name][head] for name in "QKV"), causal=kind == "decoder")
                expected = weights[0, head].float().numpy()
                np.testing.assert_allclose(found["softmax"], expected, atol=tolerance)
