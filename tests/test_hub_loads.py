"""A pushed model loads with and without the package, and translates as the local model does."""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hub_server import OWNER, WRITE_TOKEN, Blob, Commit, HubServer
from huggingface_hub import constants, hf_api
from saved_model import ENGLISH, GERMAN, trained_tokenizer, untrained_model
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerFast, Seq2SeqTrainer, Seq2SeqTrainingArguments

from hub.__main__ import main
from vaswani_transformer import Translator
from vaswani_transformer.tokenization import train_tokenizer

pipeline: Any = transformers.pipeline  # typed for the tasks of transformers only
ROOT = Path(__file__).parents[1]
TEXTS = [ENGLISH[0], ENGLISH[3], "The cat is cold."]


@dataclass
class Published:
    """A Hub with three models of different architecture, their local folders, and the users' home.

    saved: further folders and repositories, and which of the models each holds
    """

    hub: HubServer
    folders: dict[str, Path]
    home: Path
    saved: dict[str, str] = field(default_factory=dict)

    def run(self, *command: str, package: bool, given: str = "") -> str:
        """Run Python with or without the package; return its output."""
        # Without site.py (-S) no .pth file is read, so that the editable install of this clone is not found.
        python = [sys.executable] if package else [sys.executable, "-S"]
        site_packages = [path for path in sys.path if Path(path).name == "site-packages"]
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHON"))}
        environment = clean | {
            "HF_ENDPOINT": self.hub.url,
            "HF_HOME": str(self.home / "home"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_TOKEN": WRITE_TOKEN,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([*site_packages, *([str(ROOT)] if package else [])]),
            "PYTHONSAFEPATH": "1",
        }
        options: dict[str, Any] = {"env": environment, "cwd": self.home, "capture_output": True, "text": True}
        child = subprocess.run([*python, *command], input=given, **options)
        assert child.returncode == 0, child.stderr
        return child.stdout

    def child(self, *words: str) -> dict[str, Any]:
        """Run hub_child.py, without the package; its answer follows lines of the Trainer."""
        output = self.run(str(ROOT / "tests" / "hub_child.py"), *words, package=False, given=json.dumps(TEXTS))
        return json.loads(output.splitlines()[-1])


def trained(target_tokenizer: PreTrainedTokenizerFast, **changes: Any) -> Any:
    """Train a model briefly on four sentences, so that its translations differ and end."""
    model = untrained_model(**changes)
    batch = trained_tokenizer()(ENGLISH, return_tensors="pt", padding=True)
    labels: Any = target_tokenizer(GERMAN, return_tensors="pt", padding=True)["input_ids"]
    labels[labels == model.config.pad_token_id] = -100
    adam = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(40):
        adam.zero_grad()
        model(**batch, labels=labels).loss.backward()
        adam.step()
    return model.eval()


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Iterator[Published]:
    home = tmp_path_factory.mktemp("hub")
    german = train_tokenizer(GERMAN, 280)
    models: dict[str, tuple[PreTrainedTokenizerFast, dict[str, Any]]] = {
        "base-shaped": (trained_tokenizer(), {}),
        "learned-positions": (
            trained_tokenizer(),
            {"position_embedding_type": "learned", "max_position_embeddings": 64, "norm_position": "pre"},
        ),
        "separate-vocabularies": (
            german,
            {"decoder_vocab_size": 280, "share_encoder_decoder_embeddings": False, "attention_bias": True},
        ),
    }
    folders = {}
    with HubServer() as hub:
        result = Published(hub, folders, home)
        for name, (target, changes) in models.items():
            folders[name] = home / name
            trained(target, **changes).save_pretrained(folders[name])
            trained_tokenizer().save_pretrained(folders[name])
            if target is german:
                target.save_pretrained(folders[name] / "target_tokenizer")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(constants, "ENDPOINT", hub.url)
            template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants._HF_DEFAULT_ENDPOINT, hub.url)
            patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
            patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
            patch.setenv("HF_TOKEN", WRITE_TOKEN)
            # What libraries keep: transformers from 5.23 on, huggingface_hub before.
            patch.setattr(transformers.utils.hub, "_hf_api", None, raising=False)
            patch.setattr(hf_api.api, "endpoint", hub.url)
            for name, folder in folders.items():
                main(["push", str(folder), f"{OWNER}/{name}", "--yes", "--tag", "v1", "--no-pictures"])
            result.saved = save_in_every_way(folders, home / "saved")
        yield result
        assert not hub.unknown


def save_in_every_way(folders: dict[str, Path], home: Path) -> dict[str, str]:
    """Load models with the package and save them again; return each new folder or repository and its model's name."""
    separate: Any = pipeline("translation", model=str(folders["separate-vocabularies"]), device="cpu")
    separate.save_pretrained(home / "pipeline")
    separate.push_to_hub(f"{OWNER}/pipeline")

    model = AutoModelForSeq2SeqLM.from_pretrained(folders["base-shaped"])
    registered = type("Registered", (type(model),), {"_auto_class": "AutoModel", "__module__": type(model).__module__})
    arguments = Seq2SeqTrainingArguments(
        str(home / "trainer"), report_to="none", use_cpu=True, hub_model_id=f"{OWNER}/trainer"
    )
    trainer = Seq2SeqTrainer(model, arguments, processing_class=trained_tokenizer())
    trainer.save_model()
    trainer.push_to_hub()
    model.save_pretrained(home / "model")
    model.push_to_hub(f"{OWNER}/pushed-model")
    registered.from_pretrained(folders["base-shaped"]).save_pretrained(home / "registered")
    for name in ("model", "registered"):
        trained_tokenizer().save_pretrained(home / name)
    trained_tokenizer().push_to_hub(f"{OWNER}/pushed-model")
    places = [*map(str, home.iterdir()), *(f"{OWNER}/{name}" for name in ("pipeline", "trainer", "pushed-model"))]
    return {place: "separate-vocabularies" if "pipeline" in place else "base-shaped" for place in places}


def local(folder: Path) -> dict[str, Any]:
    translator = Translator.from_pretrained(folder, device="cpu")
    best, greedy = translator.translate(TEXTS), translator.translate(TEXTS, num_beams=1)
    found: Any = translator.find_hypotheses(TEXTS[0], num_return_sequences=3)[0]
    n_best = [hypothesis.text for hypothesis in found]
    generated = {"generate": best, "uncached": best, "static": best, "greedy": greedy, "greedy uncached": greedy}
    return {**generated, "pipeline": best, "n_best": n_best}


def test_every_way_of_saving_leaves_a_complete_folder(published):
    """The test below loads them; this one is fast."""
    expected = published.hub.files(f"{OWNER}/base-shaped")
    config = json.loads(expected["config.json"])
    for place in published.saved:
        folder = Path(place)
        files = published.hub.files(place) if place in published.hub.repos else {
            path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()
        }  # fmt: skip
        assert {name for name in expected if name not in files} <= {"README.md"}, place
        assert all(files[name] == content for name, content in expected.items() if name.endswith(".py")), place
        saved = json.loads(files["config.json"])
        assert saved["auto_map"] == config["auto_map"] and saved["custom_pipelines"] == config["custom_pipelines"]


@pytest.mark.slow
def test_remote_code_translates_like_the_local_model(published):
    """So do models that the package has saved in every way, and those that the remote code saves."""
    models = {f"{OWNER}/{name}": name for name in published.folders} | published.saved
    expected = {name: local(folder) for name, folder in published.folders.items()}
    assert len({tuple(found["generate"]) for found in expected.values()}) == 3, "the models translate differently"
    assert published.child(*models) == {place: expected[name] for place, name in models.items()}


def test_masks_are_requested_as_in_transformers_5_4():
    """There the fourth argument is another."""
    source = (ROOT / "vaswani_transformer" / "modeling_vaswani_transformer.py").read_text(encoding="utf-8")
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    masks = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id.endswith("_mask")]
    assert {ast.unparse(call.func) for call in masks} >= {"create_causal_mask", "create_bidirectional_mask"}
    assert all(len(call.args) <= 3 for call in masks)


@pytest.mark.slow
def test_the_package_makes_trust_remote_code_unnecessary(published):
    code = """
import json, sys
import vaswani_transformer
from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
texts = json.load(sys.stdin)
found = {}
for repo in sys.argv[1:]:
    assert type(AutoModel.from_pretrained(repo)) is vaswani_transformer.VaswaniTransformerModel
    model = AutoModelForSeq2SeqLM.from_pretrained(repo, revision="v1").eval()
    assert type(model) is vaswani_transformer.VaswaniTransformerForConditionalGeneration
    AutoTokenizer.from_pretrained(repo)
    translator = vaswani_transformer.Translator.from_pretrained(repo, device="cpu")
    translate = pipeline("translation", model=repo, device="cpu")
    assert type(translate).__module__ == "vaswani_transformer.pipeline_vaswani_transformer"
    found[repo] = [[t["translation_text"] for t in translate(texts)], translator.translate(texts)]
print(json.dumps(found))
"""
    repos = [f"{OWNER}/{name}" for name in published.folders]
    found = json.loads(published.run("-c", code, *repos, package=True, given=json.dumps(TEXTS)))
    for name, folder in published.folders.items():
        expected = local(folder)["generate"]
        assert found[f"{OWNER}/{name}"] == [expected, expected], name


@pytest.mark.slow
@pytest.mark.parametrize("package", [True, False])
def test_both_tokenizers_of_the_pipeline_are_of_the_same_commit(published, package):
    """Else a model that was updated with another target tokenizer of the same size would write other words."""
    code = """
import json, sys
from transformers import pipeline
if package := sys.argv[2] == "True":
    import vaswani_transformer
translate = pipeline("translation", model=sys.argv[1], revision="v1", trust_remote_code=not package, device="cpu")
print(json.dumps([found["translation_text"] for found in translate(json.load(sys.stdin))]))
"""
    name, repo = "separate-vocabularies", f"{OWNER}/moved-{package}"
    files = published.hub.repos[f"{OWNER}/{name}"].commit("v1").files
    other = train_tokenizer([text[::-1] for text in GERMAN] * 2, 280).backend_tokenizer.to_str()
    moved = published.hub.create(repo)
    moved.main.append(Commit("one tokenizer", files))
    moved.tags["v1"] = moved.main[-1].id
    moved.main.append(Commit("another", files | {"target_tokenizer/tokenizer.json": Blob(other.encode())}))
    found = json.loads(published.run("-c", code, repo, str(package), package=package, given=json.dumps(TEXTS)))
    assert found == local(published.folders[name])["generate"]


@pytest.mark.slow
def test_seq2seq_trainer_trains_the_remote_code(published):
    losses = published.child("--train", *(f"{OWNER}/{name}" for name in published.folders))
    assert len(losses) == 3 and all(loss["after"] < loss["before"] for loss in losses.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["base-shaped", "separate-vocabularies"])
def test_the_examples_of_the_card_run(published, name):
    card = published.hub.files(f"{OWNER}/{name}")["README.md"].decode()
    examples = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    assert len(examples) == 2
    expected = Translator.from_pretrained(published.folders[name], device="cpu").translate(ENGLISH[0])[0]
    for example in examples:
        assert '"..."' in example  # a model of unknown languages
        assert expected in published.run("-c", example.replace("...", ENGLISH[0]), package=False)
