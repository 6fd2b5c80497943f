"""Steps that torch.func builds."""

import torch
from program import Program, forever, images
from torch import nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional as F


class SimpleCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.fc1 = nn.Linear(9216, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 2)
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        return F.log_softmax(self.fc2(x), dim=1)


def per_sample_gradients(device, size, graphed):
    model = SimpleCNN().to(device=device)
    lr, max_norm = 0.01, 1.0
    loader = images(size(2, 64), 28, 10, device, channels=1)

    def compute_loss(params, buffers, sample, target):
        batch, targets = sample.unsqueeze(0), target.unsqueeze(0)
        predictions = functional_call(model, (params, buffers), (batch,))
        return F.nll_loss(predictions, targets)

    ft_compute_sample_grad = vmap(grad(compute_loss), in_dims=(None, None, 0, 0))

    @graphed
    def train_step(data, targets):
        params = {k: v.detach() for k, v in model.named_parameters()}
        buffers = {k: v.detach() for k, v in model.named_buffers()}
        grads = ft_compute_sample_grad(params, buffers, data, targets)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        factor = (max_norm / (norms + 1e-6)).clamp(max=1.0)
        with torch.no_grad():
            for name, p in model.named_parameters():
                p -= lr * torch.einsum("i,i...->...", factor, grads[name]) / len(data)
        return norms

    def loop():
        for data, targets in forever(loader):
            yield train_step(data, targets)

    return Program(loop, (model,), model)


def maml(device, size, graphed):
    model = nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1)).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    K, num_tasks, alpha = 20, size(2, 25), 0.1

    def get_task():
        A = 0.1 + 4.9 * torch.rand(num_tasks, 1, 1)
        phase = torch.pi * torch.rand(num_tasks, 1, 1)
        xs = torch.rand(2, num_tasks, K, 1) * 10 - 5
        ys = A * torch.sin(xs + phase)
        return tuple(part.to(device) for part in (xs[0], ys[0], xs[1], ys[1]))

    def loss_for(params, x, y):
        return F.mse_loss(functional_call(model, params, (x,)), y)

    def get_loss_for_task(x1, y1, x2, y2):
        params = dict(model.named_parameters())
        grads = grad(loss_for)(params, x1, y1)
        new_params = {k: params[k] - alpha * g for k, g in grads.items()}
        return loss_for(new_params, x2, y2)

    @graphed
    def train_step(x1, y1, x2, y2):
        inner_losses = vmap(get_loss_for_task)(x1, y1, x2, y2)
        loss2 = inner_losses.sum() / num_tasks
        opt.zero_grad()
        loss2.backward()
        opt.step()
        return loss2

    def loop():
        while True:
            yield train_step(*get_task())

    return Program(loop, (model, opt), model)


def ensemble(device, size, graphed):
    models = [SimpleCNN().to(device) for _ in range(size(2, 10))]
    params, buffers = stack_module_state(models)
    base_model = SimpleCNN().to("meta")
    loader = [batch[:1] for batch in images(size(2, 64), 28, 10, device, channels=1)]

    def fmodel(params, buffers, x):
        return functional_call(base_model, (params, buffers), (x,))

    @graphed
    def predict(minibatch):
        return vmap(fmodel, in_dims=(0, 0, None))(params, buffers, minibatch)

    def loop():
        for (minibatch,) in forever(loader):
            yield predict(minibatch)

    return Program(loop, (params, buffers))
