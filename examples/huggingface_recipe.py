"""A language model under transformers.Trainer, its gradients through Bandoneon.

    build/release/bin/bandoneon run -n 2 -s 1 -- build/venv/bin/python examples/huggingface_recipe.py

--plain leaves Bandoneon out: the same training by DistributedDataParallel over gloo. --updates takes a recipe
(docs/recipes.md) whose workers step by themselves and meet every few steps.
"""

import argparse

import torch
from gpt import hash_of
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch.huggingface import BandoneonCallback

parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--push", default="ef(onebit(block=256))")
parser.add_argument("--pull", default="ef(onebit(block=256))")
parser.add_argument("--output", default="build/huggingface")
parser.add_argument("--save-steps", type=int, default=0, help="a checkpoint after so many")
parser.add_argument("--resume", help="a checkpoint's folder")
parser.add_argument("--plain", action="store_true")
parser.add_argument("--updates", help="updates-30x, say")
options = parser.parse_args()

torch.set_num_threads(1)
set_seed(1)
shape = dict(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2)
model = GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))  # Random weights.
texts = torch.randint(0, 64, (512, 32), generator=torch.Generator().manual_seed(1))
data = [{"input_ids": text, "labels": text} for text in texts]

bdn.init()
optimizer = bdn.recipe(options.updates)(model, lr=1e-3) if options.updates else None
trainer = Trainer(
    model,
    TrainingArguments(
        options.output,
        max_steps=options.steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        save_strategy="steps" if options.save_steps else "no",
        save_steps=options.save_steps or 1,
        ddp_find_unused_parameters=False,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    ),
    train_dataset=data,
    optimizers=(optimizer, None),
)
if options.updates:
    trainer.add_callback(BandoneonCallback(trainer))
elif not options.plain:
    trainer.add_callback(BandoneonCallback(trainer, push=options.push, pull=options.pull))
trainer.train(resume_from_checkpoint=options.resume)
pushed, count = bandoneon.default_worker().stats()["bytes_pushed"], model.num_parameters()
print(f"{pushed} bytes pushed of {count} parameters, model {hash_of(model)[:12]}", flush=True)
bdn.shutdown()
