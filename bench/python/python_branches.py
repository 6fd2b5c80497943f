"""Whole training steps in parallel branches, against the same steps as captured: by torch.cuda.graph, and by pianola.Graph.

GPT-2 is of transformers and ResNet-18 of timm, both with random weights and deterministic algorithms, also for eager: see
python_models.py. All train alike, bit for bit: loss, gradients, parameters, buffers and what the optimizer keeps.
"""

import copy
import importlib.util

import measuring
import pianola
import python_models  # first, because it sets what torch reads of the environment
import torch
from branch_words import branch_note
from measuring import alternate, case, series
from models import InitialValues
from torch.nn import functional
from training import Reference, Training, Workload, adam, train_step, transformer

TORCH = "torch.cuda.graph"
SERIAL = "serial"
IN_BRANCHES = "branches = 4"
BRANCHES = {SERIAL: 0, IN_BRANCHES: 4}
LIMIT = 1.01  # of the step as captured
WARMUP = 3  # eager steps before the capture, which count
ITERATIONS = 10


def gpt2(settings):
    """GPT-2 small."""
    import transformers

    layers, width, heads, length, words = (2, 32, 2, 8, 100) if settings.quick else (12, 768, 12, 128, 50257)
    config = transformers.GPT2Config(
        n_layer=layers, n_embd=width, n_head=heads, n_positions=length, vocab_size=words, bos_token_id=0, eos_token_id=0,
        use_cache=False, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
    torch.manual_seed(1)
    made = python_models.LanguageModel(transformers.GPT2LMHeadModel(config).train(), length).to(settings.device)
    batch = torch.randint(words, (1, length)).to(settings.device)
    return Workload(f"GPT-2, {layers} x {width}, batch 1 x {length}, Adam", lambda: copy.deepcopy(made),
                    adam(settings.device), (batch,), criterion=lambda loss: loss)


def resnet(settings):
    import timm

    size, batch = (32, 2) if settings.quick else (224, 8)
    torch.manual_seed(1)
    made = timm.create_model("resnet18").train().to(settings.device)
    images = InitialValues(settings.device).normal((batch, 3, size, size))
    labels = torch.randint(1000, (batch,)).to(settings.device)
    return Workload(f"ResNet-18, batch {batch} x 3 x {size} x {size}, SGD with momentum", lambda: copy.deepcopy(made),
                    lambda parameters: torch.optim.SGD(parameters, lr=1e-4, momentum=0.9), (images, labels),
                    criterion=functional.cross_entropy)


WORKLOADS = (
    ("torch", lambda settings: transformer(settings.device, layers=2 if settings.quick else 8)),
    ("timm", resnet),
    ("transformers", gpt2),
)


class Captured(Training):
    """Trains eagerly until the optimizer has its state, and by replaying one graph of the whole step from then on."""

    def __init__(self, workload, way, stream):
        super().__init__(workload, way)
        self.run = train_step(self.model, self.optimizer, workload.criterion)
        self.replay = self.record
        while self.steps < WARMUP:
            self.step()
        self.optimizer.zero_grad()  # the graph makes gradients of its own
        self.graph = self.capture_by_torch(stream) if way == TORCH else self.capture(BRANCHES[way])
        self.replay = self.graph.replay

    def record(self):
        # Detached: what accumulates gradients would live on with the loss, and work on the stream of the step before.
        self.loss = self.run(*self.workload.batch).detach()

    def capture_by_torch(self, stream):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            self.record()
        return graph

    def capture(self, branches):
        graph = pianola.Graph(self.workload.device)
        graph.capture(self.record, warmup=1, branches=branches)
        return graph

    def step(self):
        self.replay()
        self.steps += 1


def case_of(settings, workload, stream):
    reference = Reference(workload)
    ways = [TORCH, SERIAL, IN_BRANCHES] if settings.device == "cuda" else [SERIAL, IN_BRANCHES]
    trainings = {way: Captured(workload, way, stream) for way in ways}
    for training in trainings.values():
        reference.check(training)
    iterations = settings.some(ITERATIONS)
    replays = {way: training.replay for way, training in trainings.items()}
    taken = series(alternate(replays, iterations, iterations, settings.rounds), "wall")
    note = branch_note(trainings[IN_BRANCHES].graph.info().branches)
    made = case(workload.title, "time per replay, back to back", iterations, SERIAL, taken, notes=[note])
    measuring.require_ratio(made, IN_BRANCHES, SERIAL, taken[IN_BRANCHES], taken[SERIAL], LIMIT)
    return made


def run(settings):
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # kernels that only help to find bugs
    stream = pianola.Stream(settings.device)
    for package, make in WORKLOADS:
        if importlib.util.find_spec(package) is None:
            settings.notes.append(f"{package} is not installed: its model is left out")
            continue
        with pianola.stream(stream):
            made = case_of(settings, make(settings), stream)
        yield made
