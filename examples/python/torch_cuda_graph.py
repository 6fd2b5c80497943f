"""Scripts for torch.cuda.graph, with `pianola` for `torch.cuda`: a whole step in one graph, and, for mixed precision, all
of it but the optimizer. Then both again, eagerly, for comparison.
"""

import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to give the same bits twice

import torch

import pianola

device = pianola.default_device()  # without a GPU: the CPU
ROWS, FEATURES, HIDDEN, TARGETS = 64, 256, 128, 32
WARMUP = 3


def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, HIDDEN), torch.nn.Dropout(0.2), torch.nn.Linear(HIDDEN, TARGETS), torch.nn.Dropout(0.1)
    ).to(device)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def batch():
    return torch.rand(ROWS, FEATURES, device=device), torch.randn(ROWS, TARGETS, device=device)


batches = [batch() for _ in range(10)]


def on_a_side_stream(step):
    """Runs a step a few times, as a capture wants it, so that what is made once is made before."""
    side = pianola.Stream()
    side.wait_stream(pianola.current_stream())
    with pianola.stream(side):
        for _ in range(WARMUP):
            step()
    pianola.current_stream().wait_stream(side)


def loss_of(model, x, y, mixed):
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=mixed):
        return torch.nn.functional.mse_loss(model(x).float(), y)


def replayed(graph, x, y, loss, after=lambda: None):
    """The losses of all batches, each copied into the tensors that the graph reads."""
    print(f"  one graph of {graph.info().nodes} nodes, backend {graph.info().backend}")
    losses = []
    for new_x, new_y in batches:
        x.copy_(new_x)
        y.copy_(new_y)
        graph.replay()
        after()
        losses.append(loss.clone())
    return losses


def whole_step():
    """Forward, backward and optimizer in one graph. Returns the losses and the model."""
    model, optimizer = make()
    x, y = batch()

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, x, y, mixed=False)
        loss.backward()
        optimizer.step()
        return loss

    on_a_side_stream(step)
    graph = pianola.CUDAGraph()
    with pianola.graph(graph):
        loss = step()
    return replayed(graph, x, y, loss), model


def mixed_precision():
    """Forward and backward in the graph; the optimizer's step, for which the scaler reads a value on the host, outside."""
    model, optimizer = make()
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
    x, y = batch()

    def forward_and_backward():
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, x, y, mixed=True)
        scaler.scale(loss).backward()
        return loss

    def update():
        scaler.step(optimizer)
        scaler.update()

    on_a_side_stream(lambda: (forward_and_backward(), update()))
    graph = pianola.CUDAGraph()
    with pianola.graph(graph):
        loss = forward_and_backward()
    return replayed(graph, x, y, loss, after=update), model


def eagerly(mixed):
    """The same training without graphs."""
    model, optimizer = make()
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0, enabled=mixed)
    losses = []
    for x, y in [batch()] * WARMUP + batches:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, x, y, mixed)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return losses[WARMUP:], model


def main():
    torch.use_deterministic_algorithms(True)
    all_same = True
    for name, script, mixed in (("whole step", whole_step, False), ("mixed precision", mixed_precision, True)):
        print(f"{name} on {device}")
        losses, model = script()
        expected, eager = eagerly(mixed)
        print("  losses", " ".join(f"{loss.item():.4f}" for loss in losses))
        same = all(map(torch.equal, losses, expected)) and all(map(torch.equal, model.parameters(), eager.parameters()))
        print("  losses and weights are", "those of eager, bit for bit" if same else "NOT those of eager")
        all_same = all_same and same
    return 0 if all_same else 1


if __name__ == "__main__":
    sys.exit(main())
