"""A training of a few steps, as tests of `run` and of deployments start it."""

import torch

import bandoneon.torch as bdn

torch.set_num_threads(1)
torch.manual_seed(0)
bdn.init()
model = torch.nn.Linear(8, 1)
bdn.broadcast_parameters(model, root=0)
optimizer = bdn.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
losses = []
for step in range(5):
    optimizer.zero_grad()
    loss = (model(torch.ones(4, 8)) - bdn.rank()).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
digest = sum(parameter.double().sum().item() for parameter in model.parameters())
print(f"trained {bdn.rank()} of {bdn.size()} to {digest!r}")
bdn.shutdown()
