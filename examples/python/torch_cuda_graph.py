"""The script that torch's documentation has for torch.cuda.graph, with `pianola` for `torch.cuda`: a whole step in one
graph, and, for mixed precision, all of it but the optimizer. Then both again, eagerly, for comparison.
"""

import os
import sys

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to give the same bits twice

import torch

import pianola

device = pianola.default_device()  # without a GPU: the CPU
N, D_in, H, D_out = 64, 256, 128, 32


def make():
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(D_in, H), torch.nn.Dropout(p=0.2), torch.nn.Linear(H, D_out), torch.nn.Dropout(p=0.1)
    ).to(device)
    return model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


real_inputs = [torch.rand(N, D_in, device=device) for _ in range(10)]
real_targets = [torch.randn(N, D_out, device=device) for _ in range(10)]


def whole_step():
    """Returns the losses and the model."""
    model, loss_fn, optimizer = make()

    # Placeholders used for capture
    static_input = torch.randn(N, D_in, device=device)
    static_target = torch.randn(N, D_out, device=device)

    # warmup
    s = pianola.Stream()
    s.wait_stream(pianola.current_stream())
    with pianola.stream(s):
        for i in range(3):
            optimizer.zero_grad(set_to_none=True)
            y_pred = model(static_input)
            loss = loss_fn(y_pred, static_target)
            loss.backward()
            optimizer.step()
    pianola.current_stream().wait_stream(s)

    # capture
    g = pianola.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with pianola.graph(g):
        static_y_pred = model(static_input)
        static_loss = loss_fn(static_y_pred, static_target)
        static_loss.backward()
        optimizer.step()

    losses = []
    for data, target in zip(real_inputs, real_targets):
        static_input.copy_(data)
        static_target.copy_(target)
        g.replay()
        losses.append(static_loss.clone())
    print(f"  one graph of {g.info().nodes} nodes, backend {g.info().backend}")
    return losses, model


def mixed_precision():
    """Forward, loss and backward in the graph; the optimizer's step, which reads a value on the host, outside."""
    model, loss_fn, optimizer = make()
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)

    static_input = torch.randn(N, D_in, device=device)
    static_target = torch.randn(N, D_out, device=device)

    s = pianola.Stream()
    s.wait_stream(pianola.current_stream())
    with pianola.stream(s):
        for i in range(3):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                y_pred = model(static_input)
                loss = loss_fn(y_pred.float(), static_target)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    pianola.current_stream().wait_stream(s)

    g = pianola.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with pianola.graph(g):
        with torch.autocast(device.type, dtype=torch.bfloat16):
            static_y_pred = model(static_input)
            static_loss = loss_fn(static_y_pred.float(), static_target)
        scaler.scale(static_loss).backward()
        # don't capture scaler.step(optimizer) or scaler.update()

    losses = []
    for data, target in zip(real_inputs, real_targets):
        static_input.copy_(data)
        static_target.copy_(target)
        g.replay()
        # Runs scaler.step and scaler.update eagerly
        scaler.step(optimizer)
        scaler.update()
        losses.append(static_loss.clone())
    print(f"  one graph of {g.info().nodes} nodes, backend {g.info().backend}")
    return losses, model


def eagerly(mixed):
    """The same training without graphs."""
    model, loss_fn, optimizer = make()
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0, enabled=mixed)
    first = torch.randn(N, D_in, device=device), torch.randn(N, D_out, device=device)
    losses = []
    for data, target in [first] * 3 + list(zip(real_inputs, real_targets)):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=mixed):
            loss = loss_fn(model(data).float(), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return losses[3:], model


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
