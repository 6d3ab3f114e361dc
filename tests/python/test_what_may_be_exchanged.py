"""What has nothing to exchange, what cannot be, and what is said of it: before anybody has exchanged anything."""

import subprocess
import sys
import textwrap

import pytest
import torch

import bandoneon
import bandoneon.torch as bdn
from cluster_helpers import assert_same, fill, grads, loss_of, make_batch, model_hash, recorded_pushes, run_job
from test_owners import OWNERS
from test_processes import run_processes


class WithEmpty(torch.nn.Module):
    """A parameter without elements before and behind others, as models that are cut have."""

    def __init__(self):
        super().__init__()
        self.none = torch.nn.Parameter(torch.zeros(0, 4))
        self.first = torch.nn.Linear(6, 8)
        self.bias = torch.nn.Parameter(torch.zeros(0))
        self.last = torch.nn.Linear(8, 3)
        fill(self)

    def forward(self, batch):
        return self.last(self.first(batch).tanh()) + self.none.sum() + self.bias.sum()


def trained(model, optimizer, rank=None, steps=3):
    for step in range(steps):
        local = []
        for one in range(2) if rank is None else [rank]:
            optimizer.zero_grad()
            loss_of(model, make_batch(one, step)).backward()
            local.append(grads(model))
        if rank is None:
            for name, param in model.named_parameters():
                param.grad = (local[0][name] + local[1][name]) / 2
        optimizer.step()
    return model_hash(model)


@pytest.mark.parametrize("overlap", ["backward", "forward", False])
def test_parameters_without_elements_are_left_out_and_all_others_are_right(overlap):
    def job(worker):
        model = WithEmpty()
        bdn.broadcast_parameters(model, worker=worker)
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = bdn.DistributedOptimizer(inner, model, overlap=overlap, worker=worker, links=bdn.Links(scaler=None))
        trained(model, optimizer, worker.rank)
        optimizer.synchronize()
        return model_hash(model)

    model = WithEmpty()
    plain = trained(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    assert run_job(job) == [plain, plain]


@pytest.mark.parametrize("kind", [kind for kind in OWNERS if kind != "DDPState"])
def test_every_optimizer_leaves_parameters_without_elements_out(kind):
    """As it trains the same model without them."""

    def job(worker):
        hashes = []
        for leave_out in (False, True):
            model = WithEmpty()
            if leave_out:
                model.none = model.bias = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
                del model._parameters["none"], model._parameters["bias"]
                model.none = model.bias = torch.zeros(0)
            optimizer = OWNERS[kind](model, worker, f"{leave_out}/")
            trained(model, optimizer, worker.rank)
            state = optimizer.comm_state_dict()
            optimizer.load_comm_state_dict(state)
            hashes.append({name: p.detach().clone() for name, p in model.named_parameters() if p.numel()})
        assert_same(*hashes)
        return True

    assert run_job(job) == [True, True]


def test_a_model_of_nothing_but_such_parameters():
    def job(worker):
        param = torch.nn.Parameter(torch.zeros(0))
        optimizer = bdn.DistributedOptimizer(
            torch.optim.SGD([param], lr=0.1), [("none", param)], worker=worker, links=bdn.Links(scaler=None)
        )
        param.sum().backward()
        optimizer.step()
        return True

    assert run_job(job) == [True, True]


def test_below_ddp_as_well(tmp_path):
    first, second = run_processes(tmp_path, "trains_with_empty_parameters")
    assert first == second and first["hook"] == first["gloo"] == first["optimizer"]


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_push_pull_of_no_elements_is_done_at_once(shape):
    def job(worker):
        tensor = torch.zeros(shape)
        handle = bdn.push_pull(tensor, "t", worker=worker)
        assert handle.is_done() and handle.wait() is not None
        return handle.wait().shape == tensor.shape

    assert run_job(job) == [True, True]


def test_a_lazy_modules_parameter_is_named():
    def job(worker):
        model = torch.nn.Sequential(torch.nn.LazyLinear(3))
        with pytest.raises(bandoneon.InvalidArgument, match="'0.weight' has no shape yet.*call the model once"):
            bdn.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model, worker=worker)
        return True

    assert run_job(job, workers=1) == [True]


# ---- Refused, in words that fit, before anything is exchanged ----


def refuses(message, call):
    def job(worker):
        with recorded_pushes(worker) as batches, pytest.raises(bandoneon.InvalidArgument, match=message):
            call(worker)
        return batches

    assert run_job(job) == [[], []]


@pytest.mark.parametrize(
    "value, message",
    [
        (3.5, r"'loss' is a float: give it loss = torch.tensor\(\[3.5\]\)"),
        ([1.0], "'loss' is a list: give it a torch.Tensor"),
        (None, "'loss' is a NoneType"),
    ],
)
def test_push_pull_of_what_is_no_tensor_says_what_to_give_it(value, message):
    refuses(message, lambda worker: bdn.push_pull(value, "loss", worker=worker))


def test_push_pull_of_an_array():
    numpy = pytest.importorskip("numpy")
    refuses(r"'a' is a ndarray: .*from_numpy", lambda worker: bdn.push_pull(numpy.ones(3), "a", worker=worker))


def test_push_pull_without_a_name():
    refuses("the name of a tensor is a string", lambda worker: bdn.push_pull("loss", torch.ones(1), worker=worker))


def test_push_pull_of_an_expanded_tensor_is_refused_before_the_others_step():
    refuses(
        "several elements of 'x' share one place.*clone",
        lambda worker: bdn.push_pull(torch.ones(1).expand(4), "x", worker=worker),
    )


def test_push_pull_of_a_sparse_tensor():
    sparse = torch.eye(3).to_sparse()
    refuses(
        r"tensor 'x' is sparse \(torch.sparse_coo\); give push_pull\(\) its to_dense",
        lambda worker: bdn.push_pull(sparse, "x", worker=worker),
    )


def test_tensors_of_the_meta_device_are_named():
    with torch.device("meta"):
        model = torch.nn.Linear(2, 2)
    refuses("'weight' is on the meta device", lambda worker: bdn.broadcast_parameters(model, worker=worker))
    refuses("'x' is on the meta device", lambda worker: bdn.push_pull(model.weight, "x", worker=worker))
    refuses("'weight' is on the meta device", lambda worker: OWNERS["DistributedOptimizer"](model, worker, ""))


@pytest.mark.parametrize(
    "buffer, message",
    [
        (torch.eye(3).to_sparse(), r"^'adj' is sparse \(torch.sparse_coo\); dense tensors alone are broadcast"),
        (torch.ones(1).expand(3), "several elements of 'adj' share one place"),
    ],
)
def test_buffers_that_cannot_be_broadcast_are_called_buffers(buffer, message):
    model = torch.nn.Linear(2, 2)
    model.register_buffer("adj", buffer)
    refuses(message, lambda worker: bdn.broadcast_parameters(model, worker=worker))


def test_a_gradient_that_is_expanded_gets_its_mean():
    """As a program may put it there itself."""

    def job(worker):
        model = torch.nn.Linear(4, 4, bias=False)
        fill(model)
        optimizer = OWNERS["DistributedOptimizer"](model, worker, "")
        for _ in range(2):
            model.weight.grad = torch.full((1, 4), float(worker.rank)).expand(4, 4)
            optimizer.step()
            assert torch.equal(model.weight.grad, torch.full((4, 4), 0.5))
            optimizer.zero_grad()
        return model_hash(model)

    first, second = run_job(job)
    plain = torch.nn.Linear(4, 4, bias=False)
    fill(plain)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for _ in range(2):
        plain.weight.grad = torch.full((4, 4), 0.5)
        optimizer.step()
    assert first == second == model_hash(plain)


# ---- Without numpy, which torch may be installed without ----


def test_all_of_it_works_without_numpy(tmp_path):
    program = textwrap.dedent(
        """
        import sys, warnings

        sys.modules["numpy"] = None  # As where it is not installed.
        warnings.simplefilter("ignore")
        import torch, bandoneon, bandoneon.torch as bdn
        from bandoneon.torch.batch_norm import average_batch_norm

        torch.set_num_threads(1)

        def job(worker):
            torch.manual_seed(worker.rank)
            model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8))
            bdn.broadcast_parameters(model, worker=worker)
            optimizer = bdn.DistributedOptimizer(
                torch.optim.AdamW(model.parameters()), model, worker=worker, push="ef(onebit)", pull="ef(onebit)"
            )
            for _ in range(3):
                optimizer.zero_grad()
                model(torch.randn(4, 6)).square().mean().backward()
                optimizer.step()
            assert bdn.allgather_object(worker.rank, worker=worker) == [0, 1]
            loss = bdn.push_pull(torch.tensor([float(worker.rank)]), "loss", worker=worker).wait()
            average_batch_norm(model, worker=worker)
            bdn.save(sys.argv[1], {"model": model, "optimizer": optimizer}, worker=worker)
            bdn.load(sys.argv[1], {"model": model, "optimizer": optimizer}, worker=worker)
            optimizer.close()
            local = bdn.LocalSteps(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), tau=2,
                                   outer=bdn.algorithms.SignMomentum(), worker=worker,
                                   links=bdn.Links(push="int8", prefix="local/"))
            for _ in range(2):
                model(torch.randn(4, 6)).square().mean().backward()
                local.step()
            return loss.tolist(), [p.tolist() for p in model.parameters()]

        with bandoneon.LocalCluster(workers=2, servers=1) as cluster:
            first, second = cluster.run(job)
        assert first == second and first[0] == [0.5]
        print("all of it")
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "saved"], capture_output=True, text=True, timeout=120
    )
    assert "all of it" in done.stdout, done.stderr
