"""What a call of @pianola.graphed takes to see that all that its step read on the host is as it was: ResNet-50's training."""

import sys

import pianola
import torch
from measuring import alternate, case, require_within, series
from pianola._structure import of_arguments
from resnet import resnet50
from torch.nn import functional

EMPTY = "a call of nothing"
STRUCTURE = "arguments taken apart"
LOOK = "arguments taken apart, and a look at all that was read"
ITERATIONS, BURST = 2000, 200
LIMIT_US = 2 if sys.version_info >= (3, 12) else 15  # where the interpreter tells of changes, and where it is asked


def graphed_training(device):
    torch.manual_seed(1)
    model = resnet50(10).to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)

    @pianola.graphed
    def step(images, labels):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def run(settings):
    step = graphed_training(settings.device)
    images = torch.randn(2, 3, 32, 32, device=settings.device)
    labels = torch.randint(10, (2,), device=settings.device)
    for _ in range(step.calls_before_replay + 2):
        step(images, labels)
    (signature,) = step.info().signatures
    if signature.state != "captured":
        raise RuntimeError(f"the step is not replayed: {signature.reason}")
    states = step.states

    def look():
        if states.find(of_arguments((images, labels), {})[1])[1] is not None:
            raise RuntimeError("what the step reads has changed")

    ways = {EMPTY: lambda: None, STRUCTURE: lambda: of_arguments((images, labels), {}), LOOK: look}
    iterations = settings.some(ITERATIONS)
    samples = series(alternate(ways, iterations, min(BURST, iterations), settings.rounds), "host")
    places = len(next(iter(states._known)).states[0].places)
    made = case("ResNet-50, SGD with momentum", "host time", iterations, EMPTY, samples,
                notes=[f"{places} places are looked at"])
    require_within(made, LOOK, STRUCTURE, samples, LIMIT_US)
    return [made]
