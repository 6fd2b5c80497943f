"""Training steps of models that others wrote, with random weights: GPT-2 of transformers and ResNet-18 of timm.

Deterministic algorithms are on, also for eager, which could not be compared bit by bit without.
"""

import copy
import importlib.util
import os

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # deterministic algorithms want it, before CUDA starts

import torch  # noqa: E402
from measuring import alternate, case, series  # noqa: E402
from models import InitialValues  # noqa: E402
from torch.nn import functional  # noqa: E402
from training import CALLABLES, EAGER, STEP, Reference, Training, Workload, adam, require_replayed  # noqa: E402

ITERATIONS = 10
WORDS = 1000


class LanguageModel(torch.nn.Module):
    """GPT-2 with its loss.

    The mask is given: without one, transformers reads a value on the host to see whether it can do without, and looks
    at whether a capture is open, in which case it takes other kernels than eager does.
    """

    def __init__(self, gpt2, length):
        super().__init__()
        self.gpt2 = gpt2
        mask = torch.ones(length, length, dtype=torch.bool).tril().expand(1, 1, length, length)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, words):
        return self.gpt2(input_ids=words, attention_mask=self.mask, labels=words, use_cache=False).loss


def gpt2(settings, dropout):
    import transformers

    layers, width, heads, batch, length = (2, 32, 2, 2, 8) if settings.quick else (6, 384, 6, 8, 128)
    config = transformers.GPT2Config(
        n_layer=layers, n_embd=width, n_head=heads, n_positions=length, vocab_size=WORDS, bos_token_id=0, eos_token_id=0,
        use_cache=False, attn_pdrop=dropout, embd_pdrop=dropout, resid_pdrop=dropout)
    torch.manual_seed(1)
    made = LanguageModel(transformers.GPT2LMHeadModel(config).train(), length).to(settings.device)
    words = torch.randint(WORDS, (batch, length)).to(settings.device)
    title = f"GPT-2, {layers} x {width}, batch {batch} x {length}, {f'dropout {dropout:g}' if dropout else 'no dropout'}, Adam"
    return Workload(title, lambda: copy.deepcopy(made), adam(settings.device), (words,), criterion=lambda loss: loss)


def resnet(settings):
    import timm

    size, batch = (32, 2) if settings.quick else (64, 16)
    torch.manual_seed(1)
    made = timm.create_model("resnet18", num_classes=10).train().to(settings.device)
    images = InitialValues(settings.device).normal((batch, 3, size, size))
    labels = torch.randint(10, (batch,)).to(settings.device)
    return Workload(f"ResNet-18, batch {batch} x 3 x {size} x {size}, SGD with momentum", lambda: copy.deepcopy(made),
                    lambda parameters: torch.optim.SGD(parameters, lr=1e-4, momentum=0.9), (images, labels),
                    criterion=functional.cross_entropy)


WORKLOADS = (
    ("transformers", lambda settings: gpt2(settings, dropout=0)),
    ("timm", resnet),
    ("transformers", lambda settings: gpt2(settings, dropout=0.1)),
)


def cases_of(settings, workload):
    reference = Reference(workload)
    trainings = {EAGER: reference.training}
    for way in (CALLABLES, STEP):
        trainings[way] = Training(workload, way).graph()
        reference.check(trainings[way])
    iterations = settings.some(ITERATIONS)
    steps = {way: training.step for way, training in trainings.items()}
    samples = alternate(steps, iterations, iterations, settings.rounds)
    for training in trainings.values():
        require_replayed(training)
    return [case(workload.title, measured, iterations, EAGER, series(samples, time))
            for time, measured in (("wall", "time per step"), ("host", "host time per step"))]


def run(settings):
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # kernels that only help to find bugs
    for package, make in WORKLOADS:
        if importlib.util.find_spec(package) is None:
            settings.notes.append(f"{package} is not installed: its model is left out")
        else:
            yield from cases_of(settings, make(settings))
