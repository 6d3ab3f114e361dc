"""Bandoneon below transformers.Trainer. Needs the package transformers; nothing else here imports it."""

import pathlib

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback

from ..errors import FailedPrecondition, InvalidArgument
from ..session import default_worker
from .checkpoint_storage import Directory
from .ddp import DDPState, ddp_hook
from .ddp_besides import keep_gradients_local
from .foreign_words import answer_foreign_words
from .links import Links, takes_links


class BandoneonCallback(TrainerCallback):
    """Exchanges what a Trainer trains: its gradients go through Bandoneon in place of all-reduces.

        bandoneon.torch.init()
        trainer = Trainer(model, TrainingArguments(...), train_dataset=data)
        trainer.add_callback(BandoneonCallback(trainer, push="ef(onebit)", pull="ef(onebit)"))
        trainer.train()
        bandoneon.torch.shutdown()

    The workers are the processes that `bandoneon run` or torchrun starts; the Trainer itself sees them,
    wraps its model in DistributedDataParallel and shares out the data. With gradient_accumulation_steps
    only the last of the batches is exchanged.

    Where the Trainer was given an optimizer of ours that exchanges by itself, that is what exchanges, the gradients
    stay each worker's own, and there are no options:

        optimizer = bandoneon.torch.recipe("updates-100x")(model, lr=0.016)
        trainer = Trainer(model, TrainingArguments(...), train_dataset=data, optimizers=(optimizer, None))
        trainer.add_callback(BandoneonCallback(trainer))

    Every checkpoint of the Trainer gets a file of each worker, bandoneon-RANK.pt, with what the links
    remember, and trainer.train(resume_from_checkpoint=...) takes them up. resume_from: the checkpoint's
    folder, where it is not below the Trainer's output_dir. links, or push and pull alone: as DDPState takes them.
    """

    @takes_links("momentum", "warmup", "overrides", "prefix", "timeout", "check", "scaler", "weight", "average")
    def __init__(self, trainer, *, push=None, pull=None, links=Links(), resume_from=None, worker=None):
        self._trainer = trainer
        self._resume_from = resume_from
        self._worker = worker
        self._links = links
        self._model = None
        self._state = None
        self._optimizer = None

    def on_train_begin(self, args, state, control, **_):
        worker = self._worker or default_worker()
        model = self._trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            if worker.size == 1:
                return
            raise FailedPrecondition(
                f"the Trainer has a {type(model).__name__} and no DistributedDataParallel to hook into: start "
                "the workers by `bandoneon run` or torchrun, which tell it of each other, and leave sharding "
                "(FSDP, DeepSpeed) out"
            )
        if model is not self._model:
            self.close()
            self._optimizer = _exchanging(self._trainer.optimizer)
            if self._optimizer is not None:
                if self._links != Links():
                    raise InvalidArgument(
                        f"the Trainer's {type(self._optimizer).__name__} has links of its own, so those of "
                        f"BandoneonCallback, {self._links}, would do nothing: leave them out"
                    )
                keep_gradients_local(model)
                self._model = model
        if self._optimizer is None and model is not self._model:
            named = list(model.module.named_parameters())
            self._state = DDPState(named, worker=worker, links=self._links)
            model.register_comm_hook(self._state, ddp_hook)
            self._model = model
        if state.global_step > 0:
            self._load(args, state)

    def on_save(self, args, state, control, **_):
        if self._optimizer is not None:
            # Of this worker, as each has its own; the Trainer saves those of rank 0.
            content = {"links": self._optimizer.comm_state_dict(), "optimizer": self._optimizer.state_dict()}
            content["model"] = self._model.module.state_dict()
        elif self._state is not None:
            content = self._state.comm_state_dict()
        else:
            return
        path = self._path(args, state)
        place = Directory(path.parent)
        # Of a host that shares no file system with the first, the Trainer makes none.
        place.create()
        place.write(path.name, lambda file: torch.save(content, file))

    def close(self):
        """Frees the parameters' names for another Trainer."""
        if self._state is not None:
            self._state.close()
        self._state = self._model = self._optimizer = None

    def _load(self, args, state):
        path = self._path(args, state, self._resume_from)
        if not path.exists():
            raise FailedPrecondition(
                f"the Trainer goes on at step {state.global_step}, and {path} is not there: give "
                "BandoneonCallback(resume_from=) the checkpoint's folder, with the files of all workers"
            )
        saved = torch.load(path, map_location="cpu", weights_only=True)
        if self._optimizer is None:
            return self._state.load_comm_state_dict(saved)
        self._model.module.load_state_dict(saved["model"])
        self._optimizer.load_state_dict(saved["optimizer"])
        self._optimizer.load_comm_state_dict(saved["links"])

    def _path(self, args, state, folder=None):
        folder = folder or pathlib.Path(args.output_dir, f"checkpoint-{state.global_step}")
        return pathlib.Path(folder, f"bandoneon-{(self._worker or default_worker()).rank}.pt")


answer_foreign_words(["BandoneonCallback"], globals())


def _exchanging(optimizer):
    """The optimizer, out of what accelerate puts around it, if it exchanges by itself; else None."""
    optimizer = getattr(optimizer, "optimizer", optimizer)
    return optimizer if hasattr(optimizer, "comm_state_dict") else None
