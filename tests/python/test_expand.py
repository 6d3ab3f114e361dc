"""expand(): a larger transformer computes what the smaller one does."""

import copy

import pytest
import torch
from torch import nn

import bandoneon
import bandoneon.torch as bdn
from bandoneon.torch.expand import Block, Layout
from cluster_helpers import run_job

expand = bdn.algorithms.expand
VOCABULARY, PLACES = 23, 12
# From width 32 with 4 heads. The hidden sizes are no multiples of 50.
SIZES = [(40, 5, 60), (48, 6, 51), (64, 8, 100), (80, 10, 128)]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def draw(*shape, seed=1, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def filled(model, seed, dtype):
    """Nothing at an even value: norms that are not 1, biases that are not 0."""
    with torch.no_grad():
        for i, param in enumerate(model.to(dtype).parameters()):
            param.copy_(0.3 * draw(*param.shape, seed=1000 * seed + i) + (param.dim() == 1) * 0.5)
    return model.eval()


def tokens(rows=3):
    return torch.randint(VOCABULARY, (rows, PLACES), generator=torch.Generator().manual_seed(2))


def off(model, target, inputs=None):
    with torch.no_grad():
        expected, found = (m(tokens() if inputs is None else inputs) for m in (model, target))
    expected, found = (getattr(x, "logits", x) for x in (expected, found))
    return ((found - expected).abs().max() / expected.abs().max()).item()


# ---- Models of this test ----


class Plain(nn.Module):
    """Embeddings, nn.TransformerEncoder and a head."""

    def __init__(self, width=32, heads=4, hidden=50, layers=2, norm_first=True, tied=False, last_norm=True):
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, hidden, 0.0, batch_first=True, norm_first=norm_first)
        self.words = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(torch.zeros(PLACES, width))
        norm = nn.LayerNorm(width) if last_norm else None
        self.encoder = nn.TransformerEncoder(layer, layers, norm, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, text):
        return self.head(self.encoder(self.words(text) + self.places))


def pair(dtype, size, make=Plain, **options):
    width, heads, hidden = size
    return (filled(make(**options), 1, dtype), filled(make(width=width, heads=heads, hidden=hidden, **options), 2, dtype))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("options", [{}, dict(tied=True), dict(last_norm=False)], ids=str)
def test_a_wider_encoder_computes_the_same(dtype, size, options):
    model, target = pair(dtype, size, **options)
    before = copy.deepcopy(model.state_dict())
    done = expand(model, target)
    assert off(model, target) < TOLERANCE[dtype]
    assert done.width == (32, size[0]) and done.heads == (4, size[1]) and done.layers == (2, 2)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), model.state_dict().values()))
    assert done.origins.keys() == dict(target.named_parameters()).keys()


@pytest.mark.parametrize("layers", [3, 4, 5])
@pytest.mark.parametrize("size", [(32, 4, 50), (80, 10, 128)], ids=str)
def test_a_deeper_one_computes_the_same(layers, size):
    model = filled(Plain(), 1, torch.float64)
    target = filled(Plain(*size, layers=layers), 2, torch.float64)
    done = expand(model, target)
    assert off(model, target) < 1e-10
    assert done.layers == (2, layers)
    assert sum(origin == "a new block, 0" for origin in done.origins.values()) == 4 * (layers - 2)


def test_norms_behind_the_sums_take_a_multiple_and_no_more_layers():
    model, target = pair(torch.float64, (64, 8, 70), norm_first=False)
    expand(model, target)
    assert off(model, target) < 1e-10
    model, target = pair(torch.float64, (48, 6, 70), norm_first=False)
    with pytest.raises(bandoneon.InvalidArgument, match=r"width 48 is no multiple of 32.*\(post-norm\)"):
        expand(model, target)
    with pytest.raises(bandoneon.InvalidArgument, match=r"target has 3 layers, the model 2.*\(post-norm\)"):
        expand(model, filled(Plain(64, 8, 70, layers=3, norm_first=False), 2, torch.float64))


def test_a_bare_encoder_takes_and_gives_a_wider_stream():
    def make(width=32, heads=4, hidden=50):
        layer = nn.TransformerEncoderLayer(width, heads, hidden, 0.0, batch_first=True, norm_first=True)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    model, target = pair(torch.float64, (80, 10, 60), make)
    expand(model, target)
    x = draw(2, 5, 32)
    wide = torch.cat([x, x, x.mean(-1, keepdim=True).expand(-1, -1, 16)], -1)
    with torch.no_grad():
        small, large = model(x), target(wide)
    for part in (large[..., :32], large[..., 32:64]):
        torch.testing.assert_close(part, small, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(large[..., 64:], small.mean(-1, keepdim=True).expand(-1, -1, 16), rtol=1e-10, atol=1e-10)


def test_copies_differ_so_that_training_uses_them():
    model, target = pair(torch.float64, (64, 8, 100))
    expand(model, target)
    layer = target.encoder.layers[0]
    q = layer.self_attn.in_proj_weight[:64]
    assert (q[:32] - q[32:]).abs().max() > 0.1, "of heads that are copies"
    assert (layer.linear1.weight[:50] - layer.linear1.weight[50:]).abs().max() > 0.1, "of neurons that are copies"
    target(tokens()).square().mean().backward()
    gradient = layer.linear2.weight.grad
    assert (gradient[:, :50] - gradient[:, 50:]).abs().max() <= 1e-12 * gradient.abs().max(), "as yet they compute the same"
    with torch.no_grad():
        for param in target.parameters():
            param -= 0.1 * param.grad if param.grad is not None else 0
    target.zero_grad()
    target(tokens()).square().mean().backward()
    gradient = layer.linear2.weight.grad
    assert (gradient[:, :50] - gradient[:, 50:]).abs().max() > 1e-3 * gradient.abs().max(), "and after a step no more"


def test_without_the_epsilon_or_the_tied_factor_it_is_something_else():
    """The two traps: what they cost is what the other tests would miss without a tolerance this small."""
    model, target = pair(torch.float64, (48, 6, 60))
    expand(model, target)
    for norm in (m for m in target.modules() if isinstance(m, nn.LayerNorm)):
        norm.eps = 1e-5
    assert 1e-9 < off(model, target) < 1e-3
    model, target = pair(torch.float64, (64, 8, 100), tied=True)
    expand(model, target)
    assert torch.allclose(target.encoder.norm.weight[:32], model.encoder.norm.weight / 2)
    with torch.no_grad():
        target.encoder.norm.weight *= 2
        target.encoder.norm.bias *= 2
    assert off(model, target) == pytest.approx(1.0)


# ---- transformers ----


def gpt2(width=32, heads=4, hidden=50, layers=2, kind="GPT2LMHeadModel", **options):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=width, n_head=heads, n_inner=hidden, n_layer=layers, vocab_size=VOCABULARY,
                                     n_positions=PLACES, bos_token_id=0, eos_token_id=0, resid_pdrop=0, embd_pdrop=0,
                                     attn_pdrop=0, **options)
    return getattr(transformers, kind)(config)


def bert(width=32, heads=4, hidden=50, layers=2, kind="BertForMaskedLM", **options):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(hidden_size=width, num_attention_heads=heads, intermediate_size=hidden, vocab_size=VOCABULARY,
                                     num_hidden_layers=layers, max_position_embeddings=PLACES, num_labels=3, **options)
    return getattr(transformers, kind)(config)


def vit(width=32, heads=4, hidden=50, layers=2, kind="ViTForImageClassification"):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(hidden_size=width, num_attention_heads=heads, intermediate_size=hidden,
                                    num_hidden_layers=layers, image_size=8, patch_size=4, num_labels=5)
    return getattr(transformers, kind)(config)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_gpt2_computes_the_same(dtype, size, tied):
    model, target = pair(dtype, size, gpt2, tie_word_embeddings=tied)
    expand(model, target)
    assert off(model, target) < TOLERANCE[dtype]


def test_a_deeper_gpt2_and_its_configuration():
    model, target = filled(gpt2(), 1, torch.float64), filled(gpt2(48, 6, 70, 5), 2, torch.float64)
    done = expand(model, target, inputs=tokens())
    assert off(model, target) < 1e-10
    assert target.config.layer_norm_epsilon == pytest.approx(1e-5 * 32 / 48)
    again = type(target)(target.config).to(torch.float64).eval()
    again.load_state_dict(target.state_dict())
    assert off(target, again) == 0 and done.epsilons["transformer.ln_f"] == target.config.layer_norm_epsilon


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_vit_computes_the_same(size):
    model, target = pair(torch.float64, size, vit)
    expand(model, target)
    assert off(model, target, draw(2, 3, 8, 8)) < 1e-10


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "BertForSequenceClassification", "BertForTokenClassification"])
def test_bert_computes_the_same_at_a_multiple(kind):
    model, target = pair(torch.float64, (64, 8, 70), bert, kind=kind)
    expand(model, target)
    assert off(model, target) < 1e-10
    with pytest.raises(bandoneon.InvalidArgument, match="post-norm"):
        expand(*pair(torch.float64, (80, 10, 70), bert, kind=kind))


def test_of_a_model_without_a_head_the_first_part_is_the_same():
    model, target = pair(torch.float64, (80, 10, 70), gpt2, kind="GPT2Model")
    expand(model, target, inputs=tokens())
    with torch.no_grad():
        small, large = model(tokens())[0], target(tokens())[0]
    torch.testing.assert_close(large[..., :32], small, rtol=1e-10, atol=1e-10)


# ---- A layout ----


class Scaled(Plain):
    """Its forward does what no layout says."""

    def forward(self, text):
        return self.head(self.encoder(self.words(text) * self.words.embedding_dim**0.5 + self.places))


def test_inputs_find_what_forward_does_besides():
    model, target = pair(torch.float64, (64, 8, 100), Scaled)
    before, epsilons = copy.deepcopy(target.state_dict()), [m.eps for m in target.modules() if hasattr(m, "eps")]
    with pytest.raises(bandoneon.InvalidArgument, match="computes something else than the small one.*left as it was"):
        expand(model, target, inputs=tokens())
    assert all(torch.equal(a, b) for a, b in zip(before.values(), target.state_dict().values()))
    assert epsilons == [m.eps for m in target.modules() if hasattr(m, "eps")]


def layout_of(model):
    blocks = [Block(e.norm1, e.self_attn, None, e.norm2, e.linear1, e.linear2) for e in model.encoder.layers]
    return Layout(model.words.embedding_dim, model.encoder.layers[0].self_attn.num_heads, [model.words, model.places], blocks,
                  model.encoder.norm, [model.head])


def test_a_layout_says_where_parameters_are_and_one_that_is_forgotten_is_named():
    model, target = pair(torch.float64, (40, 5, 60))
    expand(model, target, layout=layout_of)
    assert off(model, target) < 1e-10

    def forgetful(model):
        whole = layout_of(model)
        return Layout(whole.width, whole.heads, whole.writes[:1], whole.blocks, whole.norm, whole.reads)

    before = copy.deepcopy(target.state_dict())
    with pytest.raises(bandoneon.InvalidArgument, match="nothing says what 'places' of a model .Plain. is for"):
        expand(model, target, layout=forgetful)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), target.state_dict().values()))


# ---- Checkpoints ----


def test_checkpoints_of_both_kinds_are_taken_and_epsilons_put_back(tmp_path):
    model, target = pair(torch.float64, (48, 6, 60))
    torch.save(model.state_dict(), tmp_path / "small.pt")

    def job(worker):
        bdn.save(tmp_path / "small", {"model": model}, worker=worker)
        loaded = filled(Plain(), 7, torch.float64)
        bdn.load(tmp_path / "small", {"model": loaded}, worker=worker)
        done = expand(loaded, target)
        bdn.save(tmp_path / "large", {"model": target}, worker=worker)
        again = filled(Plain(48, 6, 60), 8, torch.float64)
        bdn.load(tmp_path / "large", {"model": again}, worker=worker)
        without = off(model, again)
        done.set_epsilons(again)
        return without, off(model, again)

    ((without, with_them),) = run_job(job, workers=1)
    assert with_them < 1e-10 < without
    plain = filled(Plain(), 7, torch.float64)
    plain.load_state_dict(torch.load(tmp_path / "small.pt", weights_only=True))
    other = filled(Plain(48, 6, 60), 9, torch.float64)
    done = expand(plain, other)
    assert off(model, other) < 1e-10
    with pytest.raises(bandoneon.InvalidArgument, match="has no norm 'encoder.layers.0.norm1'"):
        done.set_epsilons(nn.Linear(2, 2))


# ---- What is refused ----


@pytest.mark.parametrize("size, options, message", [
    ((24, 3, 60), {}, "target has width 24, less than the model's 32"),
    ((64, 4, 60), {}, "target has heads of 16, and the model of 8: give it 8 heads"),
    ((64, 8, 40), {}, "target has 40 neurons in a block, less than the model's 50"),
    ((64, 8, 60), dict(layers=1), "target has layers 1, less than the model's 2"),
    ((64, 8, 60), dict(tied=True), "head tied"),
    ((64, 8, 60), dict(norm_first=False), "norms behind the sums"),
    ((64, 8, 60), dict(last_norm=False), "has no norm"),
])
def test_models_that_do_not_fit_are_named_and_nothing_is_changed(size, options, message):
    model, target = filled(Plain(), 1, torch.float64), filled(Plain(*size, **options), 2, torch.float64)
    before = copy.deepcopy(target.state_dict())
    with pytest.raises(bandoneon.InvalidArgument, match=message):
        expand(model, target)
    assert all(torch.equal(a, b) for a, b in zip(before.values(), target.state_dict().values()))


def test_models_that_compute_otherwise_are_named():
    def activated(name, *size):
        model = Plain(*size)
        for layer in model.encoder.layers:
            layer.activation = getattr(torch.nn.functional, name)
        return model

    with pytest.raises(bandoneon.InvalidArgument, match="layers have activation=gelu, and the model's relu"):
        expand(activated("relu"), activated("gelu", 64, 8, 60))
    with pytest.raises(bandoneon.InvalidArgument, match="activation_function='relu', and the model's 'gelu_new'"):
        expand(gpt2(), gpt2(64, 8, 60, activation_function="relu"))
    by_layer = dict(scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(bandoneon.InvalidArgument, match="scale_attn_by_inverse_layer_idx=True and more layers"):
        expand(gpt2(**by_layer), gpt2(64, 8, 60, 3, **by_layer))


def test_other_things_than_two_models_of_one_class_are_named():
    model = Plain()
    for arguments, message in [
        ((model, 3), "target: .*takes two modules, and got a int"),
        (({}, model), "model: .*takes two modules, and got a dict"),
        ((model, model), "one module"),
        ((model, nn.Linear(2, 2)), "of one class"),
        ((nn.Linear(2, 2), nn.Linear(4, 4)), r"Linear.* has 0 nn.TransformerEncoder and not one: give layout="),
    ]:
        with pytest.raises(bandoneon.InvalidArgument, match=message):
            expand(*arguments)


def test_what_stands_beside_an_encoder_and_is_not_known_is_named():
    class Odd(Plain):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.mixer = nn.Linear(self.words.embedding_dim, self.words.embedding_dim)

    with pytest.raises(bandoneon.InvalidArgument, match="'mixer', a model .Linear., beside a nn.TransformerEncoder"):
        expand(Odd(), Odd(64, 8, 60))
