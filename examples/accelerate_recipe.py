"""A loop written for accelerate, its gradients through Bandoneon: a hook on the prepared model.

    build/release/bin/bandoneon run -n 2 -s 1 -- build/venv/bin/python examples/accelerate_recipe.py

--plain leaves the hook out: the same training by DistributedDataParallel over gloo. --updates takes a recipe
(docs/recipes.md) whose workers step by themselves and meet every few steps.
"""

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from gpt import GPT, hash_of, load_text, sample

import bandoneon.torch as bdn

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--push", default="ef(onebit(block=256))")
parser.add_argument("--pull", default="ef(onebit(block=256))")
parser.add_argument("--save", help="a folder for a checkpoint after half of the steps")
parser.add_argument("--resume", help="such a folder, to go on from")
parser.add_argument("--plain", action="store_true")
parser.add_argument("--updates", help="updates-30x, say")
options = parser.parse_args()

worker = bdn.init()
torch.set_num_threads(1)
torch.manual_seed(1)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = GPT(width=32, heads=2, layers=1)
text, _ = load_text(None)
data = sample(text, torch.Generator().manual_seed(1), count=32 * options.steps)
loader = torch.utils.data.DataLoader(data, batch_size=8)
if options.updates:
    exchange = bdn.recipe(options.updates)(model, lr=1e-3)
else:
    exchange = torch.optim.AdamW(model.parameters(), 1e-3)
model, optimizer, loader = accelerator.prepare(model, exchange, loader)

if options.updates:
    bdn.keep_gradients_local(model)

    # What is each worker's own beside what accelerate saves, which is rank 0's.
    def save_own(models, weights, folder):
        own = {"links": exchange.comm_state_dict(), "optimizer": exchange.state_dict()}
        torch.save({**own, "model": model.module.state_dict()}, f"{folder}/bandoneon-{bdn.rank()}.pt")

    accelerator.register_save_state_pre_hook(save_own)
elif not options.plain:
    state = bdn.DDPState(model.module.named_parameters(), push=options.push, pull=options.pull)
    model.register_comm_hook(state, bdn.ddp_hook)

    # A file a worker beside what accelerate saves, for what its links remember.
    def save_links(models, weights, folder):
        torch.save(state.comm_state_dict(), f"{folder}/bandoneon-{bdn.rank()}.pt")

    def load_links(models, folder):
        state.load_comm_state_dict(torch.load(f"{folder}/bandoneon-{bdn.rank()}.pt"))

    accelerator.register_save_state_pre_hook(save_links)
    accelerator.register_load_state_pre_hook(load_links)

done = 0
if options.resume:
    accelerator.load_state(options.resume)
    if options.updates:
        own = torch.load(f"{options.resume}/bandoneon-{bdn.rank()}.pt")
        model.module.load_state_dict(own["model"])
        exchange.load_state_dict(own["optimizer"])
        exchange.load_comm_state_dict(own["links"])
    done = options.steps // 2
for number, batch in enumerate(accelerator.skip_first_batches(loader, 2 * done), 2 * done):
    with accelerator.accumulate(model):  # Every second batch exchanges the gradients of two.
        logits = model(batch[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    if options.save and number + 1 == options.steps:
        accelerator.save_state(options.save)

pushed, count = worker.stats()["bytes_pushed"], sum(p.numel() for p in model.parameters())
print(f"{pushed} bytes pushed of {count} parameters, model {hash_of(model)[:12]}", flush=True)
bdn.shutdown()
accelerator.end_training()
