"""`python -m conversion MODEL OUT` converts a checkpoint of another toolkit; `--to` writes one."""

import time
from pathlib import Path
from typing import Annotated

import typer

from vaswani_transformer.atomic import check_new_folder
from vaswani_transformer.errors import InputError
from vaswani_transformer.exit import exit_cleanly
from vaswani_transformer.lines import check_file
from vaswani_transformer.options import DryRun, Revision, locate_model

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(
    help="Convert a checkpoint of another toolkit to a model folder or, with --to, a model folder to a checkpoint. "
    "A SentencePiece model becomes a tokenizer to train with."
)
def convert(
    model: Annotated[
        str,
        typer.Argument(
            help="A checkpoint, its folder, owner/name on the Hub, or a SentencePiece model; with --to, a model folder."
        ),
    ],
    out: Annotated[Path, typer.Argument(help="A new folder.")],
    toolkit: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Format of the checkpoint, such as fairseq, if not recognised; an unknown name lists all.",
            metavar="FORMAT",
        ),
    ] = None,
    to: Annotated[
        str | None, typer.Option(help="Write a model folder in this format, such as ctranslate2.", metavar="FORMAT")
    ] = None,
    logits: Annotated[
        Path | None,
        typer.Option(
            help="Compare with an .npz file of logits that the toolkit computed: arrays src_ids, tgt_in_ids, logits; "
            "optionally src_mask, tgt_mask.",
            metavar="FILE",
        ),
    ] = None,
    paper_search: Annotated[
        bool, typer.Option("--paper-search", help="Use the paper's search, not the settings of the checkpoint.")
    ] = False,
    source_language: Annotated[
        str | None,
        typer.Option(help="Source language of a multilingual model (M2M-100, NLLB, ...), such as en or eng_Latn."),
    ] = None,
    target_language: Annotated[str | None, typer.Option(help="Target language of a multilingual model.")] = None,
    revision: Revision = None,
    dry_run: DryRun = False,
) -> None:
    languages = (source_language, target_language)
    if to is not None and (toolkit, logits, paper_search, *languages) != (None, None, False, None, None):
        raise InputError("--to converts a model folder of this project and takes no other option")
    if not dry_run:
        check_new_folder(out)  # before the model is downloaded
        if logits is not None:
            check_file(logits)
    path = locate_model(model, revision, dry_run)
    from .convert import export_checkpoint, import_checkpoint, import_tokenizer

    start = time.perf_counter()
    if to is not None:
        export_checkpoint(path, out, to)
    elif path.suffix in (".model", ".spm") and path.is_file() and toolkit is logits is None:
        if (paper_search, *languages) != (False, None, None):
            raise InputError(
                f"{path} becomes a tokenizer; leave out --paper-search, --source-language and --target-language"
            )
        import_tokenizer(path, out)
    else:
        import_checkpoint(path, out, toolkit, logits, paper_search, *languages)
    print(f"{out}: written in {time.perf_counter() - start:.1f} s")


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="vaswani-transformer convert")


if __name__ == "__main__":
    main()
