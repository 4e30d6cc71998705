"""Section 5: training. One process, or one per GPU; interrupted at any instant, the same command goes on."""

import copy
import dataclasses
import gc
import itertools
import math
import os
import signal
import time
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from accelerate.utils import (
    DistributedDataParallelKwargs,
    DynamoBackend,
    InitProcessGroupKwargs,
    LoggerType,
    TorchDynamoPlugin,
    broadcast_object_list,
)
from transformers.utils import logging as transformers_logging

from vaswani_transformer import VaswaniTransformerForConditionalGeneration
from vaswani_transformer.atomic import UMASK
from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError
from vaswani_transformer.pictures import curve_figure, curves_of
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER
from vaswani_transformer.translator import Translator

from . import checkpoint, fsdp, machine
from .average import write_model_folder
from .batches import Order, Plan, plan_batches, shares
from .corpus import Corpus, load_corpus, overlap, parallel_texts, tokenizer_sha256
from .cost import product_rate, training_flops
from .loss import TrainingLoss
from .model import control_ids, load_or_train_tokenizer, load_target_tokenizer, make_model, model_config
from .output import claim_output, refuse_changes
from .recipe import Recipe
from .report import Reporter
from .schedule import learning_rate

GO_ON, LIMIT_REACHED, SIGNAL = 0, 1, 2  # SIGNAL + n: signal n; the largest of all processes' codes counts.


@dataclass
class Progress:
    """Where a run is: all that a checkpoint holds besides weights and moments."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0  # in steps alone
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0  # with all that was done besides
    skipped_steps: int = 0
    skipped_in_a_row: int = 0
    best_loss: float | None = None
    best_step: int | None = None
    validated_step: int = 0
    validations_since_best: int = 0


class Signals:
    """SIGTERM and SIGINT ask the run to save and leave; a second one ends the process at once."""

    received: int | None = None

    def __enter__(self) -> "Signals":
        self.previous = {number: signal.signal(number, self._handle) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: object) -> None:
        if self.received is not None:
            os._exit(128 + number)
        self.received = number


def train(recipe: Recipe) -> None:
    """Train what the recipe says into recipe.output_dir, or go on where a run there was interrupted.

    Leaves the folder of a model: config.json, model.safetensors, tokenizer.json, generation_config.json.
    """
    output = Path(recipe.output_dir)
    transformers_logging.disable_progress_bar()  # one bar is enough; it is ours
    machine.refuse_deepspeed()
    split_weights = fsdp.take_request()
    accelerator = make_accelerator(recipe, output)
    reporter = Reporter(accelerator.is_main_process, recipe.keep_going)
    with ExitStack() as stack:
        machine.refuse_too_few_processes(recipe.processes, accelerator.num_processes)
        if accelerator.is_main_process:
            stack.enter_context(checkpoint.lock_run(output))
            claim_output(recipe, output, reporter)
        accelerator.wait_for_everyone()
        signals = Signals()
        run = Run(recipe, output, accelerator, reporter, signals, split_weights)
        # Until here a signal ends the process: there is nothing to save, and text may be read for an hour.
        stack.enter_context(signals)
        stack.callback(reporter.stop)
        stack.callback(accelerator.end_training)
        stack.callback(run.let_go)
        run.train()
    raise_for_signal(signals)


def raise_for_signal(signals: Signals) -> None:
    """End the process with the exit code that shells give to a signal, once everything is saved."""
    if signals.received is not None:
        raise SystemExit(128 + signals.received)


def make_accelerator(recipe: Recipe, output: Path) -> Accelerator:
    for name in recipe.trackers:  # Accelerate leaves a tracker out without a word when its package is missing.
        if name in LOGGER_TYPE_TO_CLASS and LoggerType(name) not in get_available_trackers():
            raise UnavailableError(f"trackers: {name} is not installed; pip install {name}")
    try:
        return Accelerator(
            # Said aloud, or Accelerate starts several processes without a GPU as so many runs of one process each.
            cpu=not torch.accelerator.is_available(),
            mixed_precision=recipe.mixed_precision,
            log_with=[LoggerType(name) for name in recipe.trackers] or None,
            project_dir=output,
            # What --dynamo_backend asks for, but for sentences of all lengths: Accelerate's default compiles each anew.
            dynamo_plugin=TorchDynamoPlugin(dynamic=True),
            kwargs_handlers=[
                # The main process tokenises the corpus while the others wait.
                InitProcessGroupKwargs(timeout=timedelta(hours=12)),
                DistributedDataParallelKwargs(gradient_as_bucket_view=True),
            ],
        )
    except ValueError as error:
        raise InputError(f"mixed_precision or trackers: {' '.join(str(error).split())}") from error


class Run:
    """One training run, from the text to the model folder."""

    def __init__(
        self,
        recipe: Recipe,
        output: Path,
        accelerator: Accelerator,
        reporter: Reporter,
        signals: Signals,
        split_weights: bool = False,
    ):
        """split_weights: FSDP instead of DDP, where there are several processes"""
        self.recipe, self.output, self.accelerator = recipe, output, accelerator
        self.reporter, self.signals = reporter, signals
        self.root = output / "checkpoints"
        self.saving = checkpoint.Background()
        self.progress = Progress()
        self.began = time.perf_counter()

        self.tokenizer, self.target_tokenizer, self.corpus, self.validation = self._main_process_first(self._read_text)
        self.config = model_config(
            recipe,
            len(self.tokenizer),
            self.target_tokenizer and len(self.target_tokenizer),
            control_ids(self.tokenizer, self.target_tokenizer),
        )
        self.plan = plan_batches(
            self.corpus.source_lengths,
            self.corpus.target_lengths,
            recipe.tokens_per_step // recipe.micro_batches,
            recipe.micro_batches,
        )
        self.order = Order(self.plan, recipe.seed)
        self.total_steps = total_steps(recipe, self.plan)

        device = accelerator.device
        if device.type == "cpu":
            machine.keep_memory()
        precision = machine.choose_matmul_precision(recipe.matmul_precision, device)
        lengths = [float(side.mean()) for side in (self.corpus.source_lengths, self.corpus.target_lengths)]
        attention = machine.choose_attention(recipe.attention, device, sum(lengths) / 2)
        # Of MFU: a token's FLOPs, of a source and of a target, and what all processes together could do at most.
        self.flop_per_token = [training_flops(self.config, *tokens, *lengths) for tokens in ((1, 0), (0, 1))]
        narrow = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(accelerator.mixed_precision, torch.float32)
        self.most_flop_per_second = product_rate(device, narrow, 0.05) * accelerator.num_processes
        machine.seed_everything(recipe.seed)
        self.model = make_model(recipe, self.config, attention)
        byte_dropout = recipe.fast_dropout == "auto" and device.type == "cpu"
        if byte_dropout:
            machine.use_byte_dropout(self.model)
        module = TrainingLoss(self.model, recipe.label_smoothing, recipe.label_smoothing_spread)
        split_weights = split_weights and accelerator.num_processes > 1
        if split_weights:
            fsdp.split(module, device, accelerator.num_processes)
        # Section 5.3: Adam with beta1 0.9, beta2 0.98, epsilon 1e-9.
        optimizer = torch.optim.Adam(
            self.model.parameters(),
            lr=0.0,
            betas=(recipe.adam_beta1, recipe.adam_beta2),
            eps=recipe.adam_epsilon,
            fused=device.type in ("cpu", "cuda"),
        )
        # For "evaluation" Accelerate leaves out DDP, and keeps the autocast of mixed precision.
        self.module = accelerator.prepare_model(module, not split_weights, evaluation_mode=split_weights)
        self.optimizer = cast(AcceleratedOptimizer, accelerator.prepare_optimizer(optimizer))
        self.environment = {
            **machine.versions(),
            "device": torch.cuda.get_device_name() if device.type == "cuda" else device.type,
            "mixed_precision": str(accelerator.mixed_precision),
            "matmul_precision": precision,
            "attention": attention,
            "byte_dropout": byte_dropout,
        }
        compiler = accelerator.state.dynamo_plugin
        if compiler is not None and compiler.backend != DynamoBackend.NO:
            self.environment["compiler"] = compiler.backend.value.lower()
        if split_weights:
            self.environment["weights"] = "split by FSDP"
        self.identity = {
            "corpus sha256": self.corpus.sha256,
            "tokenizer sha256": tokenizer_sha256(self.tokenizer),
            "processes": accelerator.num_processes,
        }
        if self.target_tokenizer is not None:
            self.identity["target tokenizer sha256"] = tokenizer_sha256(self.target_tokenizer)

    # --- what is trained on what ---

    def _main_process_first(self, function: Any) -> Any:
        """The main process does the work and fills the cache, then the others find it there."""
        result = function() if self.accelerator.is_main_process else None
        self.accelerator.wait_for_everyone()
        return result if self.accelerator.is_main_process else function()

    def _read_text(self) -> tuple[Any, Any, Corpus, Corpus | None]:
        recipe, say = self.recipe, self.reporter.say
        texts = parallel_texts(recipe, recipe.train)
        held_out = parallel_texts(recipe, recipe.validation)
        test = parallel_texts(recipe, recipe.test)
        tokenizer = load_or_train_tokenizer(recipe, self.output, texts, say)
        targets_own = load_target_tokenizer(recipe, self.output)
        cache = Path(recipe.cache) if recipe.cache else self.output / "corpus"
        corpus, validation, in_test = (
            load_corpus(each, tokenizer, recipe, cache, say, targets_own) if each else None
            for each in (texts, held_out, test)
        )
        assert corpus is not None
        for name, other in (("validation", validation), ("test", in_test)):
            if other is not None and (common := overlap(corpus, other)):
                say(f"warning: {common} of {len(other)} {name} pairs are in the training text as well")
        return tokenizer, targets_own, corpus, validation

    # --- the loop ---

    def train(self) -> None:
        recipe = self.recipe
        self._resume()
        progress = self.progress
        self.wall_seconds_before = progress.wall_seconds
        self._introduce()
        if recipe.trackers:
            self.accelerator.init_trackers("vaswani_transformer", config=_flat(recipe.model_dump()))
        self.reporter.start(self.output, self.accelerator, progress.step, self.total_steps)
        self._settle_buckets()
        self.start_window()
        saved = progress.step
        code = self._agreed_code()
        if progress.step > progress.validated_step and self._validation_is_due(code):
            # A signal came between this step and its validation.
            self._validate(last=code == LIMIT_REACHED)
            if progress.best_step == progress.step:
                self._save()
            code = max(code, self._agreed_code())
        while code == GO_ON:
            self._written(wait=False)
            if not self.step():
                code = self._agreed_code()
                break
            step = progress.step
            if step % recipe.log_every == 0 or step == self.total_steps:
                self._log()
            self.reporter.advance(step)
            code = self._agreed_code()
            save_due = step % recipe.save_every == 0 or code == LIMIT_REACHED
            if self._validation_is_due(code):
                self._validate(last=code == LIMIT_REACHED)
                code = max(code, self._agreed_code())
            if code != GO_ON or save_due or progress.best_step == step:
                self._save()
                saved = step
        if code >= SIGNAL:
            if saved != progress.step:
                self._save()
            self._written()
            self.accelerator.wait_for_everyone()
            number = code - SIGNAL
            self.signals.received = number
            done = f"saved step {progress.step}" if progress.step else "before the first step"
            self.reporter.say(f"{signal.Signals(number).name}: {done}; the same command goes on from there")
            return
        self._finish()

    def _settle_buckets(self) -> None:
        """One backward pass for nothing, after which DDP adds gradients up in the order that it keeps.

        It takes the order of its buckets from the first backward pass that a process makes, and makes that one in
        another. Three numbers have another sum in another order: a run that goes on would differ in the last bits.
        """
        if self.accelerator.num_processes == 1 or fsdp.is_split(self.module):
            return
        self.module.train()
        # Twice the same pair: a compiler takes a batch of one for a case of its own.
        loss, _ = self.module(*self._tensors(self.corpus, np.array([0, 0])))
        self.accelerator.backward(loss * 0)
        self.optimizer.zero_grad(set_to_none=True)

    def let_go(self) -> None:
        """Give up the model, before the processes part.

        DDP holds the group of processes. Were it the last that does, Python would free the group and, without letting
        its other threads run, wait for one of the group's own, which may be waiting for Python: for ever.
        """
        self.accelerator.free_memory()
        del self.module, self.optimizer
        gc.collect()

    def _validation_is_due(self, code: int) -> bool:
        """After this step; not when a signal asks for haste: then the next part of the run begins with it."""
        every = self.recipe.validate_every or self.recipe.save_every
        due = self.progress.step % every == 0 or code == LIMIT_REACHED
        return self.validation is not None and due and code < SIGNAL

    def _agreed_code(self) -> int:
        """GO_ON or why to stop, the same on every process."""
        recipe, progress = self.recipe, self.progress
        progress.wall_seconds = self.wall_seconds_before + time.perf_counter() - self.began
        limits = (
            (progress.step, self.total_steps),
            (progress.wall_seconds / 3600, recipe.max_hours),
            (progress.cpu_seconds, recipe.max_cpu_seconds),
            (progress.tokens, recipe.max_tokens),
            (progress.validations_since_best, recipe.patience),
        )
        code = LIMIT_REACHED if any(limit is not None and value >= limit for value, limit in limits) else GO_ON
        if self.signals.received is not None:
            code = SIGNAL + self.signals.received
        if self.accelerator.num_processes > 1:
            codes = torch.tensor([code], device=self.accelerator.device)
            torch.distributed.all_reduce(codes, op=torch.distributed.ReduceOp.MAX)
            code = int(codes.item())
        return code

    def step(self) -> bool:
        """One step of section 5: micro-batches, gradients, Adam. False when a signal came before its end."""
        recipe, progress, accelerator = self.recipe, self.progress, self.accelerator
        started, cpu_started = time.perf_counter(), time.process_time()
        micro_batches = self.order.step(progress.step)
        pairs = np.concatenate(micro_batches)
        target_tokens = int(self.corpus.target_lengths[pairs].sum(dtype=np.int64))
        mine = shares(micro_batches, accelerator.process_index, accelerator.num_processes)
        self.module.train()
        self.optimizer.zero_grad(set_to_none=True)
        for number, part in mine:
            if self.signals.received is not None and accelerator.num_processes == 1:
                return False
            # Randomness is a function of where we are: nothing to save, and the same for any number of processes, as
            # long as no micro-batch is divided between them.
            machine.seed_everything(recipe.seed, progress.step, number)
            last = number == mine[-1][0]
            # More processes than sentences: one without any takes part in the sum over processes with nothing.
            batch, weight = (part, 1.0) if len(part) else (pairs[:1], 0.0)
            fsdp.sum_in_backward(self.module, last)
            with nullcontext() if last else accelerator.no_sync(self.module):
                loss, negative_log_likelihood = self.module(*self._tensors(self.corpus, batch))
                loss, negative_log_likelihood = loss * weight, negative_log_likelihood * weight
                # The mean over all target tokens of the step: DDP takes the mean over processes of what is a sum.
                accelerator.backward(loss * (accelerator.num_processes / target_tokens))
            self.window_loss += loss.detach()
            self.window_negative_log_likelihood += negative_log_likelihood
        if accelerator.mixed_precision == "fp16":
            accelerator.unscale_gradients()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = fsdp.whole(torch.nn.utils.get_total_norm(gradients))
        self.gradient_norm = float(norm)
        rate = learning_rate(
            progress.step + 1,
            d_model=self.config.d_model,
            warmup_steps=recipe.warmup_steps,
            factor=recipe.learning_rate_factor,
            peak=recipe.learning_rate,
            total_steps=self.total_steps,
            decay_share=recipe.decay_share,
        )
        finite = math.isfinite(self.gradient_norm)
        if finite or accelerator.mixed_precision == "fp16":
            if recipe.max_gradient_norm is not None:
                torch.nn.utils.clip_grads_with_norm_(self.model.parameters(), recipe.max_gradient_norm, norm)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()  # With fp16 the gradient scaler skips by itself, and scales less from then on.
        self._count_skipped(finite)
        self.rate = rate
        progress.step += 1
        tokens = target_tokens + int(self.corpus.source_lengths[pairs].sum(dtype=np.int64))
        progress.tokens += tokens
        progress.seconds += time.perf_counter() - started
        progress.cpu_seconds += (time.process_time() - cpu_started) * accelerator.num_processes
        self.window_tokens += tokens
        self.window_target_tokens += target_tokens
        return True

    def _count_skipped(self, finite: bool) -> None:
        """NaN and infinity never reach the weights; many in a row mean that something is wrong for good."""
        progress = self.progress
        if finite:
            progress.skipped_in_a_row = 0
            return
        progress.skipped_steps += 1
        progress.skipped_in_a_row += 1
        if self.accelerator.mixed_precision != "fp16" or progress.skipped_in_a_row > 5:
            self.reporter.say(f"step {progress.step + 1}: the gradient is not finite, step skipped")
        if progress.skipped_in_a_row >= self.recipe.max_bad_steps:
            raise InputError(
                f"{progress.skipped_in_a_row} steps in a row had a loss or gradient that is not finite, up to step "
                f"{progress.step + 1}; try a lower learning rate or longer warm-up. The last checkpoint is intact"
            )

    def _tensors(self, corpus: Corpus, pairs: np.ndarray) -> tuple[torch.Tensor | None, ...]:
        """The arguments of TrainingLoss.forward for some pairs of a corpus."""
        pad = cast(int, self.config.pad_token_id)
        source, source_real = corpus.sources(pairs, pad)
        target, target_real = corpus.targets(pairs, pad)
        shifted = np.empty_like(target)
        shifted[:, 0] = self.config.decoder_start_token_id
        shifted[:, 1:] = target[:, :-1]
        positions = np.flatnonzero(target_real)
        mask = None if source_real.all() else source_real.astype(np.int64)
        arrays = (source, mask, shifted, positions, target.reshape(-1)[positions])
        tensors = [None if a is None else torch.from_numpy(a) for a in arrays]
        device = self.accelerator.device
        if device.type == "cuda":  # Only from pinned memory does a copy let the program go on.
            tensors = [t if t is None else t.pin_memory() for t in tensors]
        return tuple(t if t is None else t.to(device, non_blocking=True) for t in tensors)

    # --- what is reported ---

    def start_window(self) -> None:
        device = self.accelerator.device
        self.window_loss = torch.zeros((), device=device)
        self.window_negative_log_likelihood = torch.zeros((), device=device)
        self.window_tokens = self.window_target_tokens = 0
        self.window_started = time.perf_counter()

    def _log(self) -> None:
        progress = self.progress
        sums = torch.stack((self.window_loss, self.window_negative_log_likelihood))
        loss, negative_log_likelihood = (self._summed(sums) / self.window_target_tokens).tolist()
        seconds = time.perf_counter() - self.window_started
        source_tokens = self.window_tokens - self.window_target_tokens
        flop = source_tokens * self.flop_per_token[0] + self.window_target_tokens * self.flop_per_token[1]
        record = {
            "step": progress.step,
            "total_steps": self.total_steps,
            "epoch": progress.step / self.plan.steps_per_epoch,
            "loss": loss,
            "perplexity": math.exp(min(negative_log_likelihood, 700)),
            "learning_rate": self.rate,
            "gradient_norm": self.gradient_norm,
            "tokens": progress.tokens,
            "tokens_per_second": self.window_tokens / seconds,
            "mfu": flop / seconds / self.most_flop_per_second,
            "seconds": progress.seconds,
            "cpu_seconds": progress.cpu_seconds,
            "skipped_steps": progress.skipped_steps,
        }
        self.reporter.progress(record, (self.total_steps - progress.step) * progress.seconds / progress.step)
        self.start_window()

    def _summed(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over all processes."""
        return cast(torch.Tensor, self.accelerator.reduce(values, "sum"))

    def _introduce(self) -> None:
        recipe = self.recipe
        parameters = sum(p.numel() for p in self.model.parameters())
        processes = self.accelerator.num_processes
        self.reporter.say(
            f"{parameters:,} parameters, {len(self.corpus):,} pairs, {self.plan.steps_per_epoch:,} steps an epoch of "
            f"{recipe.tokens_per_step:,} tokens ({self.plan.padding():.1%} padding), {self.total_steps:,} steps"
        )
        environment = self.environment
        weights = ""
        if fsdp.is_split(self.module):
            weights = f", weights split by FSDP ({fsdp.held(self.model):,} here)"
        self.reporter.say(
            f"{processes} process{'es' if processes > 1 else ''} on {environment['device']}, "
            f"{environment['threads']} threads{weights}; precision {environment['mixed_precision']}, "
            f"float32 products {environment['matmul_precision']}, attention {environment['attention']}"
            + (f", compiled by {environment['compiler']}" if "compiler" in environment else "")
        )

    # --- validation ---

    @torch.no_grad()
    def _validate(self, last: bool) -> None:
        """The loss on the validation text (without smoothing), and BLEU when its step has come or the last one has."""
        recipe, progress, accelerator = self.recipe, self.progress, self.accelerator
        assert self.validation is not None
        corpus = self.validation
        plan = plan_batches(
            corpus.source_lengths, corpus.target_lengths, recipe.tokens_per_step // recipe.micro_batches
        )
        self.module.eval()
        total = torch.zeros((), device=accelerator.device)
        batches = [plan.order[start:end] for start, end in itertools.pairwise(plan.starts)]
        for _, part in shares(batches, accelerator.process_index, accelerator.num_processes):
            batch, weight = (part, 1.0) if len(part) else (plan.order[:1], 0.0)
            total += self.module(*self._tensors(corpus, batch))[1] * weight
        fsdp.split_again(self.module)
        loss = float(self._summed(total)) / int(corpus.target_lengths.sum(dtype=np.int64))
        record = {
            "event": "validation",
            "step": progress.step,
            "validation_loss": loss,
            "validation_perplexity": math.exp(min(loss, 700)),
            "seconds": progress.seconds,
            "cpu_seconds": progress.cpu_seconds,
        }
        if math.isfinite(loss) and (progress.best_loss is None or loss < progress.best_loss):
            progress.best_loss, progress.best_step, progress.validations_since_best = loss, progress.step, 0
        else:
            progress.validations_since_best += 1
        progress.validated_step = progress.step
        news = f"step {progress.step}: validation loss {loss:.4f}, perplexity {record['validation_perplexity']:.2f}"
        if recipe.bleu_every is not None and (last or progress.step % recipe.bleu_every == 0):
            model = self._whole_model()
            if accelerator.is_main_process:
                record["validation_bleu"] = self._bleu(model)
                news += f", BLEU {record['validation_bleu']:.1f}"
            accelerator.wait_for_everyone()
        self.reporter.write(record)
        self.reporter.say(news)
        self.start_window()

    def _whole_model(self) -> VaswaniTransformerForConditionalGeneration:
        """The model, to translate with; with FSDP a copy of it on the main process, for which all send their parts."""
        if not fsdp.is_split(self.module):
            return self.model
        weights = checkpoint.copies(dict(self.model.named_parameters()), keep=self.accelerator.is_main_process)
        if not self.accelerator.is_main_process:
            return self.model
        model = VaswaniTransformerForConditionalGeneration(self.config)
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
        model.generation_config = self.model.generation_config
        return model.to(self.accelerator.device).eval()

    def _bleu(self, model: VaswaniTransformerForConditionalGeneration) -> float:
        from .scores import corpus_bleu  # sacrebleu is needed here alone
        from .test_sets import clean

        texts = parallel_texts(self.recipe, self.recipe.validation)
        chunks = [chunk for text in texts for chunk in text.chunks()]
        sources = clean([line or "" for chunk in chunks for line in chunk.sources])
        references = clean([line or "" for chunk in chunks for line in chunk.targets])
        translations = Translator(model, self.tokenizer, self.target_tokenizer).translate(sources)
        return corpus_bleu(translations, references, self.recipe.lowercase)

    # --- checkpoints ---

    def _save(self) -> None:
        """A checkpoint of the state between two steps: copied now, written while training goes on."""
        accelerator, progress, recipe = self.accelerator, self.progress, self.recipe
        parameters = dict(self.model.named_parameters())
        moments = checkpoint.optimizer_tensors(self.model, self.optimizer.optimizer)
        if not accelerator.is_main_process:
            checkpoint.copies(parameters | moments, keep=False)
            self.start_window()
            return
        started, step, best_step = time.perf_counter(), progress.step, progress.best_step
        self._written()  # One at a time: memory for a second copy may not be there.
        state = {
            "progress": dataclasses.asdict(progress),
            "gradient_scaler": copy.deepcopy(accelerator.scaler.state_dict()) if accelerator.scaler else None,
            "identity": self.identity,
            "environment": self.environment,
        }
        weights, moments = checkpoint.copies(parameters), checkpoint.copies(moments)
        odd = checkpoint.not_finite(weights | moments)
        if odd is not None:
            raise InputError(
                f"step {step}: {odd} holds values that are not finite, so it is not saved; try a lower learning rate "
                "or a larger adam_epsilon. The checkpoints before it are intact"
            )

        def write(folder: Path) -> None:
            self.model.save_pretrained(folder, state_dict=weights)
            (folder / "model.safetensors").chmod(0o666 & ~UMASK)
            self.tokenizer.save_pretrained(folder)
            if self.target_tokenizer is not None:
                self.target_tokenizer.save_pretrained(folder / TARGET_TOKENIZER)
            checkpoint.save_tensors(moments, folder / checkpoint.OPTIMIZER)
            checkpoint.write_json(folder / checkpoint.STATE, state)

        def save() -> None:
            size = sum(tensor.nbytes for tensor in (*weights.values(), *moments.values()))
            checkpoint.save_checkpoint(self.root, step, write, size)
            try:
                if best_step == step:
                    checkpoint.mark_best(self.root, step)
                checkpoint.prune(self.root, recipe.keep, recipe.save_every)
            except OSError as error:
                raise UnavailableError(f"{self.root} cannot be written: {error.strerror}") from error

        self.saving.start(save)
        self.reporter.write({"event": "checkpoint", "step": step, "stall_seconds": time.perf_counter() - started})
        self.start_window()

    def _written(self, wait: bool = True) -> None:
        """Raises UnavailableError when a checkpoint could not be written, unless the run is to go on without."""
        try:
            self.saving.wait() if wait else self.saving.raise_if_failed()
        except UnavailableError as error:
            if not self.recipe.keep_going:
                raise
            self.reporter.say(f"{error}; going on")

    def _resume(self) -> None:
        """Put everything back as the newest whole checkpoint has it, if there is one."""
        choice: list[str | None] = [None]
        if self.accelerator.is_main_process and (newest := checkpoint.newest_whole(self.root, self.reporter.say)):
            choice = [str(newest)]
        if self.accelerator.num_processes > 1:
            broadcast_object_list(choice)
        if choice[0] is None:
            return
        folder = Path(choice[0])
        state = checkpoint.read_json(folder / checkpoint.STATE)
        try:
            was = state["progress"]  # Older checkpoints lack two of its fields.
            progress = Progress(**{"validated_step": was["step"], "wall_seconds": was["seconds"], **was})
            before, environment, scaler = state["identity"], state["environment"], state["gradient_scaler"]
        except (KeyError, TypeError) as error:
            raise BrokenFileError(f"{folder / checkpoint.STATE} lacks {error}; it cannot be resumed exactly") from error
        refuse_changes(before, self.identity, self.recipe, self.reporter)
        for key in sorted(environment.keys() | self.environment.keys()):
            if environment.get(key) != self.environment.get(key):
                self.reporter.say(
                    f"warning: {key} was {environment.get(key)}, is {self.environment.get(key)}: the last bits of the "
                    "weights may differ from an uninterrupted run"
                )
        checkpoint.restore_model(self.model, folder)
        checkpoint.restore_optimizer(self.model, self.optimizer.optimizer, folder)
        if self.accelerator.scaler is not None and scaler is not None:
            self.accelerator.scaler.load_state_dict(scaler)
        self.progress = progress
        if self.accelerator.is_main_process and progress.best_step == progress.step:
            checkpoint.mark_best(self.root, progress.step)  # A kill may have come just before that.
        self.reporter.say(f"going on from {folder.name}")

    # --- the end ---

    def _finish(self) -> None:
        """Section 6.1: the last checkpoints averaged are the model; its folder is output_dir itself."""
        self._written()
        if self.accelerator.is_main_process:
            # Not those that a signal made: an interrupted run ends with the same model.
            regular = checkpoint.regular(self.root, self.recipe.save_every, last=self.progress.step)
            whole = checkpoint.whole_ones(regular, self.reporter.say)
            folders = list(itertools.islice(whole, self.recipe.average_last))[::-1]
            if not folders and not self.progress.step:
                raise InputError("max_hours, max_cpu_seconds or max_tokens ended the run before its first step")
            if not folders:
                raise UnavailableError(
                    f"{self.root}: no checkpoint could be written, so there is no model; make room and run it again"
                )
            write_model_folder(folders, self.output)
            what = f"the average of {', '.join(f.name for f in folders)}" if len(folders) > 1 else folders[0].name
            self.reporter.say(f"{self.output}: the model, {what}")
            self._draw()
        self.accelerator.wait_for_everyone()

    def _draw(self) -> None:
        """curve.png beside the model, where matplotlib is installed and something has been logged."""
        try:
            curves = curves_of(self.output / "metrics.jsonl")
            if any(curves.values()):
                curve_figure(curves).savefig(self.output / f"curve.tmp-{os.getpid()}", format="png")
                os.replace(self.output / f"curve.tmp-{os.getpid()}", self.output / "curve.png")
        except (UnavailableError, BrokenFileError) as error:
            self.reporter.say(f"no curve.png: {error}")
        except OSError as error:
            raise UnavailableError(f"{self.output / 'curve.png'} cannot be written: {error.strerror}") from error


def total_steps(recipe: Recipe, plan: Plan) -> int:
    """Steps of the whole run: max_steps or max_epochs, whatever is less."""
    limits = [recipe.max_steps]
    if recipe.max_epochs is not None:
        limits.append(max(1, math.ceil(recipe.max_epochs * plan.steps_per_epoch)))
    return min(limit for limit in limits if limit is not None)


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Trackers take numbers and texts only."""
    return {k: v if isinstance(v, int | float | str | bool) else str(v) for k, v in values.items()}
