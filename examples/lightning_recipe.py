"""A LightningModule whose optimizer is distributed; everything else is as in one process.

    build/release/bin/bandoneon run -n 2 -s 1 -- build/venv/bin/python examples/lightning_recipe.py

--hook keeps Lightning's own strategy "ddp" and exchanges below it; with --plain that strategy is left
to itself, over gloo. --updates takes a recipe (docs/recipes.md) whose workers step by themselves and meet every few
steps; with --ddp below that strategy.
"""

import argparse
import pathlib

import lightning
import torch
from gpt import GPT, hash_of, load_text, sample
from torch.utils.data import DataLoader, DistributedSampler

import bandoneon.torch as bdn

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--steps", type=int, default=10, help="in an epoch")
parser.add_argument("--push", default="ef(onebit(block=256))")
parser.add_argument("--pull", default="ef(onebit(block=256))")
parser.add_argument("--output", default="build/lightning")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--save", action="store_true", help="a checkpoint of each worker at the end")
parser.add_argument("--resume", action="store_true", help="from those in --output")
parser.add_argument("--hook", action="store_true")
parser.add_argument("--plain", action="store_true")
parser.add_argument("--updates", help="updates-30x, say")
parser.add_argument("--ddp", action="store_true", help="with --updates")
options = parser.parse_args()
codecs = dict(push=options.push, pull=options.pull)
ACCUMULATE = 2  # batches a step


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.gpt = GPT(width=32, heads=2, layers=1)

    def training_step(self, batch):
        return self.gpt.loss(batch)

    def configure_optimizers(self):
        if options.updates:
            self.exchange = bdn.recipe(options.updates)(self, lr=1e-3)
            return self.exchange
        optimizer = torch.optim.AdamW(self.parameters(), 1e-3)
        if options.plain or options.hook:
            return optimizer
        self.exchange = bdn.DistributedOptimizer(
            optimizer, self.named_parameters(), backward_passes_per_step=ACCUMULATE, **codecs
        )
        return self.exchange

    def on_fit_start(self):
        if options.hook:  # Not by DDPStrategy(ddp_comm_hook=), which is for GPUs alone.
            self.exchange = bdn.DDPState(self.named_parameters(), **codecs)
            self.trainer.strategy.model.register_comm_hook(self.exchange, bdn.ddp_hook)
        elif options.ddp:
            bdn.keep_gradients_local(self.trainer.strategy.model)

    # Each worker writes a checkpoint of its own, with what its links remember.

    def on_save_checkpoint(self, checkpoint):
        checkpoint["bandoneon"] = self.exchange.comm_state_dict()

    def on_load_checkpoint(self, checkpoint):  # Before there is an optimizer.
        self.saved = checkpoint["bandoneon"]

    def on_train_start(self):
        if options.resume:
            self.exchange.load_comm_state_dict(self.saved)


worker = bdn.init()
torch.set_num_threads(1)
text, _ = load_text(None)
data = sample(text, torch.Generator().manual_seed(1), count=32 * options.steps)
sampler = DistributedSampler(data, bdn.size(), bdn.rank(), shuffle=False)
checkpoint = pathlib.Path(options.output, f"worker-{bdn.rank()}.ckpt")
model = Model()
trainer = lightning.Trainer(
    max_epochs=options.epochs,
    accumulate_grad_batches=ACCUMULATE,
    accelerator="cpu",
    # To Lightning every worker is alone; or DDP's processes are the workers.
    strategy="ddp" if options.plain or options.hook or options.ddp else "auto",
    devices=bdn.size() if options.plain or options.hook or options.ddp else 1,
    enable_checkpointing=False,
    enable_progress_bar=False,
    logger=False,
)
loader = DataLoader(data, batch_size=8, sampler=sampler)
trainer.fit(model, loader, ckpt_path=checkpoint if options.resume else None)
if options.save:
    trainer.save_checkpoint(checkpoint)
pushed, count = worker.stats()["bytes_pushed"], sum(p.numel() for p in model.parameters())
print(f"{pushed} bytes pushed of {count} parameters, model {hash_of(model)[:12]}", flush=True)
bdn.shutdown()
