"""Texts that the model generates at an evaluation (`evaluation.samples`), for people to read.

Every rank runs the same forwards, because sharded weights and pipeline stages need all ranks. The first rank with
outputs chooses the tokens and sends them to all. Each token costs a forward of the whole length. Sampling has its own
random generators, so that it does not change the training.

P prompts, V vocabulary.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from declarative_train.data.batch import Batch
from declarative_train.data.tensor_sets import dtype_of
from declarative_train.engine.devices import exact_device
from declarative_train.engine.step.randomness import Randomness, draws, mix
from declarative_train.packs.text import layout
from declarative_train.packs.text.sampling import Sampling, choose_token
from declarative_train.packs.text.text_io import TextCodec, find_text_output
from declarative_train.run.event import TextsWritten

if TYPE_CHECKING:
    from declarative_train.engine.step.ema import Average
    from declarative_train.plan.plan import Plan, SamplesPlan
    from declarative_train.run.evaluate import EvaluableModel

_SAMPLES = 2**33  # random stream that training and evaluations do not use


def make_writer(plan: Plan, engine: EvaluableModel) -> SampleWriter | None:
    """Return the writer of generated texts (`evaluation.samples`) for a plan; None if the plan has no such key."""
    samples = None if plan.evaluation is None else plan.evaluation.samples
    return None if samples is None else SampleWriter(plan, samples, engine)


class SampleWriter:
    """Writer of the texts that a model generates at an evaluation. The constructor raises TokenizerError if the
    tokenizer cannot be loaded."""

    def __init__(self, plan: Plan, samples: SamplesPlan, engine: EvaluableModel) -> None:
        found = find_text_output(plan)
        assert found is not None
        assert plan.evaluation is not None
        self._written, self._plan, self._samples, self._engine = found, plan, samples, engine
        of_average = plan.evaluation.weights == "ema"
        self._average: Average | None = getattr(engine, "average", None) if of_average else None
        self._words = TextCodec.of(plan, found.field)
        self._sampling = Sampling(samples.temperature, samples.top_k, samples.top_p)
        needed = draws(plan.graph, plan.plugins)
        self._randomness = Randomness(plan.seed, (engine.dp_rank, _SAMPLES), engine.device, needed=needed)
        self._num_rows = len(samples.tokens)
        if plan.training.compile:  # a multiple of the evaluations' batch size: another size would be compiled again
            self._num_rows += -self._num_rows % plan.evaluation.batch_size

    def __call__(self, step: int) -> TextsWritten:
        """Generate a text for each prompt, and return the texts. All ranks must call this together, between two steps;
        the engine is in training mode afterwards."""
        begun_s = time.monotonic()
        samples = self._samples
        tokens = [list(each) for each in samples.tokens]
        ended = [False] * len(tokens)
        generators = [
            torch.Generator().manual_seed(mix(samples.seed, number) & (2**63 - 1)) for number in range(len(tokens))
        ]
        self._engine.set_training(False)
        if self._average is not None:
            self._average.exchange()
        with torch.no_grad():
            for _ in range(samples.max_tokens):
                for row, token in enumerate(self._next(tokens, generators)):
                    ended[row] = ended[row] or token in self._words.ends
                    if not ended[row]:
                        tokens[row].append(token)
                if all(ended):
                    break
        if self._average is not None:
            self._average.exchange()
        self._engine.set_training(True)
        return TextsWritten(
            step,
            list(samples.prompts),
            [self._decode_continuation(given, each) for given, each in zip(samples.tokens, tokens, strict=True)],
            time.monotonic() - begun_s,
            time.time(),
        )

    def _decode_continuation(self, given: tuple[int, ...], whole: list[int]) -> str:
        """Return the text that the model added to a prompt. `given`: tokens of the prompt. `whole`: tokens of prompt
        and continuation. The tokens of the continuation are not decoded alone, because the first one may be the rest of
        a character."""
        decode = self._words.tokenizer.decode
        before, both = decode(given), decode(whole)
        return both[len(before) :] if both.startswith(before) else decode(whole[len(given) :])

    def _next(self, tokens: list[list[int]], generators: list[torch.Generator]) -> list[int]:
        """Compute and return the next token for each prompt. All ranks must call this together, and all get the same
        tokens. `tokens`: prompt and continuation so far; `generators`: random generator of each prompt."""
        engine, context = self._engine, self._written.context
        seen = [each[-context:] for each in tokens]
        self._randomness.begin(0, 0)
        values = engine.forward(self._batch(seen))
        found = torch.zeros(len(tokens), dtype=torch.int64)
        if values is not None and engine.dp_rank == 0:
            logits = values[self._written.output]
            rows = [logits[row, len(each) - 1].float().cpu() for row, each in enumerate(seen)]
            found = torch.tensor(
                [choose_token(row, self._sampling, generator) for row, generator in zip(rows, generators, strict=True)]
            )
        return [int(token) for token in engine.ranks.sum(found.to(exact_device(engine.device))).tolist()]

    def _batch(self, seen: list[list[int]]) -> Batch:
        """Return a batch with a row for each prompt: its tokens so far, `seen`. If the batch has more rows than
        prompts, the other rows repeat the first prompt. Fields that the model does not read, such as targets, are zero.
        """
        rows = [*seen, *[seen[0]] * (self._num_rows - len(seen))]
        made = layout.rows(self._written.reads.values(), layout.pieces_of_texts(rows), self._written.length, 0)
        tensors = {}
        for field in self._plan.data.fields:
            output = self._written.reads.get(field.name)
            if output is not None:
                tensor = torch.from_numpy(made[output])
            else:
                tensor = torch.zeros((len(rows), *field.tensor.shape), dtype=dtype_of(field.tensor))
            tensors[field.name] = tensor.to(self._engine.device)
        ids = torch.arange(len(rows)).numpy()
        return Batch(tensors, len(rows), None, ids)
