"""Optimizers, each with its defaults and where people use it."""

import math

import timm
import torch
import torchvision
from program import Program, forever, images, words
from torch import nn
from torch.nn import functional as F


def _vit(size, device):
    return timm.create_model("vit_tiny_patch16_224", pretrained=False, img_size=size(32, 224), depth=size(2, 12),
                             num_classes=100).to(device)


class GatedCNN(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList([nn.Conv2d(width, 2 * width, 3, padding=1) for _ in range(4)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(width) for _ in range(4)])
        self.head = nn.Linear(width, 10)

    def forward(self, x):
        x = self.stem(x)
        for norm, block in zip(self.norms, self.blocks):
            x = x + F.glu(block(norm(x)), dim=1)
        return self.head(x.mean(dim=(2, 3)))


def _classifier(model, optimizer, loader, graphed):
    """The loop that all tutorials share."""
    model.train()

    @graphed
    def train_step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    def loop():
        for x, y in forever(loader):
            yield train_step(x, y)

    return Program(loop, (model, optimizer), model)


def nadam(device, size, graphed):
    model = torchvision.models.resnet18(num_classes=100).to(device)
    optimizer = torch.optim.NAdam(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10_000)
    loader = images(size(2, 64), size(32, 224), 100, device)
    model.train()

    @graphed
    def train_step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss

    def loop():
        for x, y in forever(loader):
            yield train_step(x, y)

    return Program(loop, (model, optimizer, scheduler), model)


def radam(device, size, graphed):
    from diffusion import VAE, loss_function

    model = VAE().to(device)
    optimizer = torch.optim.RAdam(model.parameters(), lr=1e-3)
    loader = [(torch.rand(size(16, 128), 1, 28, 28).to(device),) for _ in range(4)]

    @graphed
    def train_step(data):
        optimizer.zero_grad()
        recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        optimizer.step()
        return loss

    def loop():
        for (data,) in forever(loader):
            yield train_step(data)

    return Program(loop, (model, optimizer), model)


def adamax(device, size, graphed):
    model = GatedCNN(size(8, 128)).to(device)
    optimizer = torch.optim.Adamax(model.parameters())
    return _classifier(model, optimizer, images(size(4, 128), size(16, 32), 10, device), graphed)


def asgd_lstm(device, size, graphed):
    from sequence import RNNModel, repackage_hidden

    ntokens, width, batch, bptt = size((50, 16, 2, 5), (10_000, 400, 80, 70))
    model = RNNModel(ntokens, width, width, 2, 0.4).to(device)
    optimizer = torch.optim.ASGD(model.parameters(), lr=30, t0=0, lambd=0.0, weight_decay=1.2e-6)
    loader = [(x, y.view(-1)) for (x,), (y,) in zip(*(words(bptt, batch, ntokens, device) for _ in range(2)))]
    model.train()

    @graphed
    def train_step(data, targets, hidden):
        hidden = repackage_hidden(hidden)
        optimizer.zero_grad()
        output, hidden = model(data, hidden)
        loss = F.nll_loss(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
        return loss.data, hidden

    def loop():
        hidden = model.init_hidden(batch)
        for data, targets in forever(loader):
            loss, hidden = train_step(data, targets, hidden)
            yield loss

    return Program(loop, (model, optimizer))


def rprop(device, size, graphed):
    width = size(16, 256)
    model = nn.Sequential(nn.Linear(8, width), nn.Sigmoid(), nn.Linear(width, width), nn.Sigmoid(), nn.Linear(width, 1)).to(device)
    optimizer = torch.optim.Rprop(model.parameters(), lr=0.01)
    x, y = torch.rand(size(64, 16_384), 8).to(device), torch.rand(size(64, 16_384), 1).to(device)

    @graphed
    def train_step():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    def loop():
        while True:
            yield train_step()

    return Program(loop, (model, optimizer), model)


def fused_adamw(device, size, graphed):
    model = _vit(size, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    return _classifier(model, optimizer, images(size(2, 64), size(32, 224), 100, device), graphed)


def torch_adafactor(device, size, graphed):
    model = _vit(size, device)
    optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-2)
    return _classifier(model, optimizer, images(size(2, 64), size(32, 224), 100, device), graphed)


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in filter(lambda p: p.grad is not None, group["params"]):
                grad, lr, wd, (beta1, beta2), state = p.grad, group["lr"], group["weight_decay"], group["betas"], self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                exp_avg = state["exp_avg"]
                p.data.mul_(1.0 - lr * wd)
                update = exp_avg.clone().mul_(beta1).add(grad, alpha=1.0 - beta1).sign_()
                p.add_(update, alpha=-lr)
                exp_avg.mul_(beta2).add_(grad, alpha=1.0 - beta2)


def lion(device, size, graphed):
    model = _vit(size, device)
    optimizer = Lion(model.parameters(), lr=1e-4, weight_decay=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10_000)
    loader = images(size(2, 64), size(32, 224), 100, device)
    model.train()

    @graphed
    def train_step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    def loop():
        for x, y in forever(loader):
            yield train_step(x, y)
            scheduler.step()

    return Program(loop, (model, optimizer, scheduler), model)


def zeropower_via_newtonschulz5(G, steps):
    a, b, c = (3.4445, -4.7750, 2.0315)
    X = G.bfloat16()
    if G.size(-2) > G.size(-1):
        X = X.mT
    X = X / (X.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        A = X @ X.mT
        B = b * A + c * A @ A
        X = a * X + B @ X
    if G.size(-2) > G.size(-1):
        X = X.mT
    return X


def muon_update(grad, momentum, beta=0.95, ns_steps=5, nesterov=True):
    momentum.lerp_(grad, 1 - beta)
    update = grad.lerp_(momentum, beta) if nesterov else momentum
    if update.ndim == 4:
        update = update.view(len(update), -1)
    update = zeropower_via_newtonschulz5(update, steps=ns_steps)
    update *= max(1, grad.size(-2) / grad.size(-1)) ** 0.5
    return update


def adam_update(grad, buf1, buf2, step, betas, eps):
    buf1.lerp_(grad, 1 - betas[0])
    buf2.lerp_(grad.square(), 1 - betas[1])
    buf1c = buf1 / (1 - betas[0] ** step)
    buf2c = buf2 / (1 - betas[1] ** step)
    return buf1c / (buf2c.sqrt() + eps)


class SingleDeviceMuonWithAuxAdam(torch.optim.Optimizer):
    def __init__(self, param_groups):
        for group in param_groups:
            if group["use_muon"]:
                group.setdefault("lr", 0.02)
                group.setdefault("momentum", 0.95)
            else:
                group.setdefault("lr", 3e-4)
                group.setdefault("betas", (0.9, 0.95))
                group.setdefault("eps", 1e-10)
            group.setdefault("weight_decay", 0)
        super().__init__(param_groups, dict())

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            if group["use_muon"]:
                for p in group["params"]:
                    state = self.state[p]
                    if len(state) == 0:
                        state["momentum_buffer"] = torch.zeros_like(p)
                    update = muon_update(p.grad, state["momentum_buffer"], beta=group["momentum"])
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(update.reshape(p.shape), alpha=-group["lr"])
            else:
                for p in group["params"]:
                    state = self.state[p]
                    if len(state) == 0:
                        state["exp_avg"] = torch.zeros_like(p)
                        state["exp_avg_sq"] = torch.zeros_like(p)
                        state["step"] = 0
                    state["step"] += 1
                    update = adam_update(p.grad, state["exp_avg"], state["exp_avg_sq"], state["step"], group["betas"], group["eps"])
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(update, alpha=-group["lr"])


def muon(device, size, graphed):
    from language import GPT

    model = GPT(*size((2, 2, 32, 16, 100, 0.0), (12, 12, 768, 1024, 50304, 0.0))).to(device)
    hidden_weights = [p for p in model.transformer.h.parameters() if p.ndim >= 2]
    hidden = {id(p) for p in hidden_weights}
    others = [p for p in model.parameters() if id(p) not in hidden]
    optimizer = SingleDeviceMuonWithAuxAdam([dict(params=hidden_weights, use_muon=True, lr=0.02, weight_decay=0.01),
                                             dict(params=others, use_muon=False, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.01)])
    block, vocabulary = size((16, 100), (512, 50304))
    loader = [(x, y) for (x,), (y,) in zip(*(words(size(2, 8), block, vocabulary, device) for _ in range(2)))]
    model.train()

    @graphed
    def train_step(inputs, targets):
        _, loss = model(inputs, targets)
        loss.backward()
        optimizer.step()
        model.zero_grad(set_to_none=True)
        return loss

    def loop():
        for inputs, targets in forever(loader):
            yield train_step(inputs, targets)

    return Program(loop, (model, optimizer), model)


def lamb(device, size, graphed):
    from timm.optim import create_optimizer_v2

    model = timm.create_model(size("resnet18", "resnet26d"), pretrained=False, num_classes=100).to(device)
    optimizer = create_optimizer_v2(model, opt="lamb", lr=5e-3, weight_decay=0.02)
    return _classifier(model, optimizer, images(size(2, 64), size(32, 224), 100, device), graphed)


class FusedAdam(torch.optim.Optimizer):
    """apex.optimizers.FusedAdam, its multi_tensor_adam written by foreach functions."""

    def __init__(self, params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8, adam_w_mode=True, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, bias_correction=bias_correction, betas=betas, eps=eps, weight_decay=weight_decay))
        self.adam_w_mode = 1 if adam_w_mode else 0

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            if "step" in group:
                group["step"] += 1
            else:
                group["step"] = 1
            g, p, m, v = [], [], [], []
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(param.data)
                    state["exp_avg_sq"] = torch.zeros_like(param.data)
                g.append(param.grad.data)
                p.append(param.data)
                m.append(state["exp_avg"])
                v.append(state["exp_avg_sq"])
            correction1 = 1 - math.pow(beta1, group["step"]) if group["bias_correction"] else 1.0
            correction2 = 1 - math.pow(beta2, group["step"]) if group["bias_correction"] else 1.0
            torch._foreach_lerp_(m, g, 1 - beta1)
            torch._foreach_mul_(v, beta2)
            torch._foreach_addcmul_(v, g, g, value=1 - beta2)
            update = torch._foreach_div(v, correction2)
            torch._foreach_sqrt_(update)
            torch._foreach_add_(update, group["eps"])
            if group["weight_decay"] != 0:
                torch._foreach_mul_(p, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_addcdiv_(p, m, update, value=-group["lr"] / correction1)


def apex_adam(device, size, graphed):
    model = torchvision.models.resnet18(num_classes=100).to(device)
    optimizer = FusedAdam(model.parameters(), lr=1e-3, weight_decay=0.01)
    return _classifier(model, optimizer, images(size(2, 64), size(32, 224), 100, device), graphed)


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, adaptive=False, **kwargs):
        defaults = dict(rho=rho, adaptive=adaptive, **kwargs)
        super().__init__(params, defaults)
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups
        self.defaults.update(self.base_optimizer.defaults)

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        grad_norm = self._grad_norm()
        for group in self.param_groups:
            scale = group["rho"] / (grad_norm + 1e-12)
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.data.clone()
                e_w = (torch.pow(p, 2) if group["adaptive"] else 1.0) * p.grad * scale.to(p)
                p.add_(e_w)
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    def _grad_norm(self):
        shared_device = self.param_groups[0]["params"][0].device
        return torch.norm(torch.stack([
            ((torch.abs(p) if group["adaptive"] else 1.0) * p.grad).norm(p=2).to(shared_device)
            for group in self.param_groups for p in group["params"] if p.grad is not None]), p=2)


def sam(device, size, graphed):
    model = torchvision.models.resnet18(num_classes=10).to(device)
    optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    loader = images(size(2, 128), 32, 10, device)
    model.train()

    @graphed
    def train_step(inputs, targets):
        predictions = model(inputs)
        loss = F.cross_entropy(predictions, targets, label_smoothing=0.1)
        loss.mean().backward()
        optimizer.first_step(zero_grad=True)
        F.cross_entropy(model(inputs), targets, label_smoothing=0.1).mean().backward()
        optimizer.second_step(zero_grad=True)
        with torch.no_grad():
            correct = torch.argmax(predictions.data, 1) == targets
        return loss.item(), correct

    def loop():
        for inputs, targets in forever(loader):
            yield train_step(inputs, targets)

    return Program(loop, (model, optimizer), model)


def swa(device, size, graphed):
    model = torchvision.models.resnet18(num_classes=100).to(device)
    swa_model = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    swa_scheduler = torch.optim.swa_utils.SWALR(optimizer, anneal_strategy="linear", anneal_epochs=100, swa_lr=0.05)
    loader = images(size(2, 64), size(32, 224), 100, device)
    model.train()

    @graphed
    def train_step(input, target):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(input), target)
        loss.backward()
        optimizer.step()
        swa_model.update_parameters(model)
        swa_scheduler.step()
        return loss

    def loop():
        for input, target in forever(loader):
            yield train_step(input, target)

    return Program(loop, (model, swa_model, optimizer, swa_scheduler), model)


def accumulation(device, size, graphed):
    model = _vit(size, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gradient_accumulation_steps = 4
    loader = images(size(2, 32), size(32, 224), 100, device)
    model.train()

    @graphed
    def train_step(index, inputs, targets):
        loss = F.cross_entropy(model(inputs), targets)
        loss = loss / gradient_accumulation_steps
        loss.backward()
        if (index + 1) % gradient_accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    def loop():
        for index, (inputs, targets) in enumerate(forever(loader)):
            yield train_step(index, inputs, targets)

    return Program(loop, (model, optimizer), model)
