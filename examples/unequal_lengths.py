"""Micro-batches of sequences of unequal length (DynaPipe, arXiv 2311.10418), beside as many random ones.

    build/release/bin/bandoneon run -n 4 -s 2 -- build/venv/bin/python examples/unequal_lengths.py

Two GPTs of one seed train on the same sequences in turns. The workers' batches of one are those of
bandoneon.micro_batches, of the other random ones, as many. Each worker's mean counts as its tokens do, so both see the
same mean gradient, and their losses agree.
"""

import argparse
import contextlib
import statistics
import time

import torch
import torch.nn.functional as F
from gpt import GPT, hash_of, load_text, validate

import bandoneon
import bandoneon.torch as bdn

LONGEST = 512
PADDING = -1


def draw_sequences(text, count, generator):
    """Pieces of the text whose lengths are log-normal, as those of instructions and documents are."""
    lengths = torch.empty(count).log_normal_(4.4, 0.9, generator=generator).round().long().clamp(8, LONGEST)
    starts = torch.randint(len(text) - LONGEST - 1, (count,), generator=generator)
    return [text[start : start + length + 1].long() for start, length in zip(starts.tolist(), lengths.tolist())]


def padded(sequences):
    """(inputs, targets): each sequence and padding behind it, which attention of the past does not see."""
    inputs = torch.nn.utils.rnn.pad_sequence([s[:-1] for s in sequences], batch_first=True)
    return inputs, torch.nn.utils.rnn.pad_sequence([s[1:] for s in sequences], batch_first=True, padding_value=PADDING)


def sum_of_losses(model, sequences):
    inputs, targets = padded(sequences)
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=PADDING, reduction="sum")


def make_model():
    torch.manual_seed(1)
    return GPT(width=64, layers=2, context=LONGEST)


def measure(text):
    """A TimeModel of a few batches, of each the least of some times, as others use the machine, too."""
    model, pairs = make_model(), []
    for count, length in ((1, 8), (1, 64), (8, 64), (1, 256), (4, 256), (1, 512), (2, 512)):
        batch = [text[: length + 1].long()] * count
        seconds = []
        for _ in range(8):
            start = time.perf_counter()
            sum_of_losses(model, batch).backward()
            seconds.append(time.perf_counter() - start)
        pairs.append(((count, length), min(seconds)))
    return bandoneon.TimeModel.fit(pairs)


def random_batches(count, batches, workers, generator):
    """[the worker's batches of indices, by rank]: as many as the plan has, of equally many sequences."""
    order = torch.randperm(count, generator=generator).tolist()
    cuts = [order[i::batches] for i in range(batches)]
    return [cuts[rank::workers] for rank in range(workers)]


class Trainer:
    """A model and its optimizer, whose worker's mean counts as many as its tokens of the step."""

    def __init__(self, name, lr):
        self.model = make_model()
        self.tokens = 0
        links = bdn.Links(weight=lambda: float(self.tokens), prefix=f"{name}/")
        adam = torch.optim.AdamW(self.model.parameters(), lr)
        self.optimizer = bdn.DistributedOptimizer(adam, self.model, links=links)
        self.seconds, self.loss, self.places = [], 0.0, 0

    def step(self, sequences, batches):
        """`batches`: of each worker. The loss, a mean over all tokens of the step, is the workers' together."""
        mine = batches[bdn.rank()]
        self.tokens = sum(len(sequences[i]) - 1 for batch in mine for i in batch)
        self.places += sum(len(b) * max(len(sequences[i]) - 1 for i in b) for own in batches for b in own)
        start = time.perf_counter()
        self.optimizer.zero_grad()
        total = 0.0
        for number, batch in enumerate(mine, 1):
            # The gradients add up here, and leave with the last backward pass.
            with self.optimizer.no_sync() if number < len(mine) else contextlib.nullcontext():
                loss = sum_of_losses(self.model, [sequences[i] for i in batch]) / self.tokens
                loss.backward()
                total += loss.item()
        self.optimizer.step()
        self.seconds.append(time.perf_counter() - start)
        # Both are means over the workers, of whom one may have had nothing.
        mean = torch.tensor([total * self.tokens, float(self.tokens)])
        bdn.push_pull(mean, "loss").wait()
        self.loss = (mean[0] / mean[1]).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--sequences", type=int, default=64, help="of all workers, in a step")
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    worker = bdn.init()
    torch.set_num_threads(1)
    text, held_out = load_text(None)
    planned, random = Trainer("planned", options.lr), Trainer("random", options.lr)
    # One worker's times, for all are to make the same plan.
    seconds = bdn.broadcast_object(measure(text) if worker.rank == 0 else None, root=0)

    generator = torch.Generator().manual_seed(options.seed)  # The same in all workers.
    tokens, differences = 0, []
    for step in range(options.steps):
        sequences = draw_sequences(text, options.sequences, generator)
        lengths = [len(s) - 1 for s in sequences]
        tokens += sum(lengths)
        plan = bandoneon.micro_batches(lengths, seconds=seconds, workers=worker.size)
        number = sum(map(len, plan.batches))
        cuts = {planned: plan.batches, random: random_batches(len(lengths), number, worker.size, generator)}
        for trainer in (planned, random) if step % 2 else (random, planned):
            bdn.barrier()
            trainer.step(sequences, cuts[trainer])
        differences.append(abs(planned.loss - random.loss) / random.loss)
        if worker.rank == 0 and step % 10 == 0:
            print(f"step {step}: {number} batches, loss {planned.loss:.4f} planned, {random.loss:.4f} random", flush=True)

    if worker.rank == 0:
        first, second = statistics.median(planned.seconds), statistics.median(random.seconds)
        padding = [100 * (1 - tokens / trainer.places) for trainer in (planned, random)]
        print(
            f"step {first:.3f} s planned, {second:.3f} s random: {first / second:.2f}; padding {padding[0]:.0f} % and "
            f"{padding[1]:.0f} %; losses differ by {max(differences):.1e} at most",
            flush=True,
        )
    stats = worker.stats()
    print(
        f"validation loss {validate(planned.model, held_out):.3f}, {stats['bytes_pushed']} bytes pushed, "
        f"{stats['bytes_pulled']} pulled, model {hash_of(planned.model)[:12]}"
    )
    bdn.shutdown()


if __name__ == "__main__":
    main()
