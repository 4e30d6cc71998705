"""Converting a damaged checkpoint ends with a model or with a one-line error, and leaves nothing half written.

Bytes are cut, changed and moved; options and tensors inside pickles, YAML and JSON get values of every other kind.
"""

import contextlib
import io
import random
import shutil
import tempfile
from pathlib import Path

import pytest
from damage import spoil_bytes, spoil_content
from golden import FIXTURES

from conversion.__main__ import main

NOT_READ = {"expected.npz", "printed.npz", "inputs.txt", "beams.jsonl", "README.md", "version", "args.yaml"}
FOLDERS = sorted(
    file.parent
    for root in (FIXTURES, FIXTURES / "variants")
    for file in root.glob("*/*")
    if file.stem in ("expected", "printed")
)


# torch and numpy warn about damaged content; this test checks only the result.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 1600), marks=pytest.mark.slow)])
def test_damaged_checkpoints_convert_or_are_refused(seeds: range):
    refusals = 0
    for seed in seeds:
        chance = random.Random(seed)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(shutil.copytree(chance.choice(FOLDERS), Path(place) / "checkpoint"))
            file = chance.choice(sorted(file for file in folder.iterdir() if file.name not in NOT_READ))
            chance.choice([spoil_bytes, spoil_content])(file, chance)
            printed = io.StringIO()
            try:
                with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
                    main([str(folder), str(folder.parent / "out")])
            except SystemExit as stop:
                refusals += 1
                message = f"seed {seed}: {printed.getvalue()}"
                assert stop.code in (2, 3) or (stop.code == 1 and "log-probabilities differ" in message), message
                assert printed.getvalue().startswith("error: ") and message.count("\n") == 1, message
                assert len(message) < 20_000
                assert [path.name for path in folder.parent.iterdir()] == [folder.name], message
    assert 0 < refusals < len(seeds)
