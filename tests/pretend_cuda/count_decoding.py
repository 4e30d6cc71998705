"""Decode and evaluate on the pretended GPU and on the CPU: `count_decoding.py MODEL TEXT`.

Prints the waits of a search, and the results of both evaluations with the number of their waits.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pretend_cuda
from typer.testing import CliRunner

from training.evaluate import app
from vaswani_transformer import Translator, beam_search

folder, text = sys.argv[1:]
sentences = Path(text).read_text(encoding="utf-8").splitlines()
gpu, cpu = (Translator.from_pretrained(folder, device=device) for device in ("cuda", "cpu"))
steps, real_step = 0, beam_search.step


def counted_step(*arguments):
    global steps
    steps += 1
    return real_step(*arguments)


gpu.translate(sentences[:1])
beam_search.step = counted_step
with pretend_cuda.where_it_waits() as found:
    translations = gpu.translate(sentences)
beam_search.step = real_step
assert translations == cpu.translate(sentences)
results = []
for translator in (gpu, cpu):
    batch = translator.tokenizer(sentences, return_tensors="pt", padding=True, return_token_type_ids=False)
    model: Any = translator.model
    ids = model.generate(**batch.to(model.device))
    scores = [[round(token, 3) for token in each.log_probabilities] for each in translator.score(sentences, sentences)]
    results.append((ids.tolist(), scores))
assert results[0] == results[1]
model, batch = gpu.model, batch.to("cuda")
with pretend_cuda.where_it_waits() as found_by_generate:
    model.generate(**batch)
evaluations = []
for device in ("cuda", "cpu"):
    words = [folder, "--source", text, "--reference", text, "--device", device, "--json"]
    with pretend_cuda.where_it_waits() as waits:
        done = CliRunner().invoke(app, words, catch_exceptions=False)
    evaluations.append(json.loads(done.stdout) | {"waits": sum(waits.values())})
counts = {"steps": steps, "waits": found, "waits_of_generate": found_by_generate}
print(json.dumps({"device": str(gpu.model.device), "evaluations": evaluations, **counts}))
