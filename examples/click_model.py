"""Trains a click model whose 26 tables lie on the servers, on data that it makes.

    bandoneon run -n 4 -s 2 -- python examples/click_model.py --push int8

Each example has 26 hashed ids, some of which raise the odds of a click; popular ids are frequent, and drift. Prints
the area under the ROC curve on new examples beside that of one process that trains on the same batches, the bytes
that each worker sent and got, and a hash of the rows: two runs with one --seed print the same one, on any number of
servers. With --save DIR it leaves a checkpoint, and says how a program that serves the model gets its rows.

With --tail 0.3 three of ten ids hardly come again, as those of new users and broken links do: they teach nothing, and
most rows are theirs. --admit 3 holds rows of those ids alone that came in three steps; `bandoneon rows stat DIR` and
`bandoneon status` count them.
"""

import argparse
import hashlib

import torch

import bandoneon.torch as bdn
from bandoneon import session
from bandoneon.torch import rows

TABLES, WIDTH = 26, 8
HASHED = 2**40  # ids are hashes: of these, few ever come
VALUES = 2000  # different ones a table
RARE = 2**20  # different ones of the tail, a table


def main():
    options = read_options()
    bdn.init()
    worker = session.default_worker()
    torch.manual_seed(options.seed)
    model = ClickModel(lambda: rows.Embedding(None, WIDTH, init="normal", init_value=0.05, expect_rows=VALUES))
    bdn.broadcast_parameters(model)
    dense = bdn.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.005), model.named_parameters())
    tables = rows.RowOptimizer(
        model, rule=options.rule, lr=options.lr, push=options.push, pull=options.pull, admit=options.admit
    )
    batches = (examples(options, step, bdn.rank()) for step in range(options.steps))
    for batch, following in rows.look_ahead(batches):
        dense.zero_grad()
        tables.zero_grad()
        loss_of(model, batch).backward()
        dense.step()
        tables.step(wanted=None if following is None else list(following[0].T))
    tables.settle()
    bdn.barrier("trained")
    stats = worker.stats()
    if bdn.rank() == 0:
        area = auc_of(model, options)
        print(f"{bdn.size()} workers, push {options.push}, pull {options.pull}: AUC {area:.4f}")
        print(f"rows {hash_of(model, tables, options)}")
        if options.compare:
            print(f"one process, the same batches: AUC {by_one_process(options, bdn.size()):.4f}")
    bdn.barrier("compared")
    if options.save:
        bdn.save(options.save, {"model": model, "dense": dense, "tables": tables})
        if bdn.rank() == 0:
            print(f"to serve a table: bandoneon rows export {options.save} tables.0 --out served")
    print(f"worker {bdn.rank()} sent {stats['bytes_pushed']} bytes and got {stats['bytes_pulled']}")
    bdn.shutdown()


class ClickModel(torch.nn.Module):
    def __init__(self, make_table):
        super().__init__()
        self.tables = torch.nn.ModuleList(make_table() for _ in range(TABLES))
        self.head = torch.nn.Sequential(torch.nn.Linear(TABLES * WIDTH, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def forward(self, ids):
        return self.head(torch.cat([table(ids[:, t]) for t, table in enumerate(self.tables)], dim=1))[:, 0]


class LocalTables(torch.nn.Module):
    """The same rows in one process: of the ids that come, in the order in which they come."""

    def __init__(self, values):
        super().__init__()
        self.places = {}
        self.table = torch.nn.Embedding(values, WIDTH, sparse=True)
        torch.nn.init.normal_(self.table.weight, std=0.05)

    def forward(self, ids):
        return self.table(torch.tensor([self.places.setdefault(i, len(self.places)) for i in ids.tolist()]))


def by_one_process(options, workers):
    torch.manual_seed(options.seed)
    tail = int(options.tail * options.batch * (options.steps * workers + options.test_batches) * 1.2)
    model = ClickModel(lambda: LocalTables(VALUES * 4 + tail))
    dense = torch.optim.Adam(model.head.parameters(), lr=0.005)
    tables = torch.optim.Adagrad([table.table.weight for table in model.tables], lr=options.lr)
    for step in range(options.steps):
        dense.zero_grad()
        tables.zero_grad()
        sum(loss_of(model, examples(options, step, rank)) / workers for rank in range(workers)).backward()
        dense.step()
        tables.step()
    return auc_of(model, options)


def examples(options, step, rank):
    """(ids, clicks): the planted effect of an id is a function of the id alone."""
    generator = torch.Generator().manual_seed(options.seed * 7919 + step * 4099 + rank)
    popular = torch.rand(options.batch, TABLES, generator=generator) ** 3 * VALUES
    number = (popular.long() + step // 50 * 20) % VALUES + VALUES * torch.arange(TABLES)  # what is popular drifts
    if options.tail:
        is_rare = torch.rand(options.batch, TABLES, generator=generator) < options.tail
        rare = torch.randint(RARE, (options.batch, TABLES), generator=generator) + RARE * torch.arange(1, TABLES + 1)
        number = torch.where(is_rare, rare, number)
    ids = hashed(number)
    effect = ((hashed(ids) % 2001).float() / 1000 - 1).mean(dim=1) * 12
    clicks = torch.rand(options.batch, generator=generator) < torch.sigmoid(effect - 1)
    return ids, clicks.float()


def hashed(numbers):
    """Of int64 in the range of HASHED: splitmix's steps, with products that wrap."""
    mixed = (numbers ^ (numbers >> 15)) * 0x2545F4914F6CDD1D
    mixed = (mixed ^ ((mixed >> 27) & 0x1FFFFFFFFF)) * 0x369DEA0F31A53F85
    return ((mixed >> 20) & 0xFFFFFFFFFFF) % HASHED


def loss_of(model, batch):
    ids, clicks = batch
    return torch.nn.functional.binary_cross_entropy_with_logits(model(ids), clicks)


@torch.no_grad()
def auc_of(model, options):
    scores, clicks = [], []
    for number in range(options.test_batches):
        ids, clicked = examples(options, options.steps + number % 8, rank=1000 + number // 8)
        scores.append(model(ids))
        clicks.append(clicked)
    scores, clicks = torch.cat(scores), torch.cat(clicks)
    ranks = torch.empty(len(scores), dtype=torch.float64)
    ranks[scores.argsort()] = torch.arange(1, len(scores) + 1, dtype=torch.float64)
    positive = clicks.sum()
    return float((ranks[clicks > 0].sum() - positive * (positive + 1) / 2) / (positive * (len(scores) - positive)))


def hash_of(model, tables, options):
    """Of all rows that may have come."""
    digest = hashlib.sha256()
    for t, table in enumerate(model.tables):
        ids = torch.unique(hashed(torch.arange(VALUES) + VALUES * t))
        digest.update(tables.rows_of(table, ids).numpy().tobytes())
    return digest.hexdigest()[:16]


def read_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--test-batches", type=int, default=8, help="batches of new examples under the curve [8]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rule", default="adagrad")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--tail", type=float, default=0.0, help="the share of ids that hardly come again [0]")
    parser.add_argument("--admit", type=int, default=1, help="hold rows of ids that came in so many steps [1]")
    parser.add_argument("--push", default="none")
    parser.add_argument("--pull", default="none")
    parser.add_argument("--save", metavar="DIR", help="leave a checkpoint in a directory that all workers see")
    parser.add_argument("--no-compare", dest="compare", action="store_false", help="without the run of one process")
    return parser.parse_args()


if __name__ == "__main__":
    main()
