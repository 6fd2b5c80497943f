"""Optimizers in plain PyTorch, as people write them."""

import math

import torch


class Lion(torch.optim.Optimizer):
    """As in the paper's appendix: no code of Pianola names it."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                state = self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                beta1, beta2 = group["betas"]
                update = state["exp_avg"].clone().mul_(beta1).add(p.grad, alpha=1 - beta1).sign_()
                p.add_(update, alpha=-group["lr"])
                state["exp_avg"].mul_(beta2).add_(p.grad, alpha=1 - beta2)


class HandMadeAdam(torch.optim.Optimizer):
    """Counts its steps in a Python int, and logs: no code of Pianola names it."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, dict(lr=lr))
        self.log = []

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"], state["m"], state["v"] = 0, torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                state["m"].lerp_(p.grad, 0.1)
                state["v"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                c1, c2 = 1 - 0.9 ** state["step"], 1 - 0.999 ** state["step"]
                p.addcdiv_(state["m"], state["v"].sqrt() / math.sqrt(c2) + 1e-8, value=-group["lr"] / c1)
        self.log.append(state["step"])


class FusedAdam(torch.optim.Optimizer):
    """As apex has it: one count for a whole group, and one call for each of its operations."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            beta1, beta2 = group["betas"]
            params = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in params]
            for p in params:
                if not self.state[p]:
                    self.state[p] = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            means = [self.state[p]["exp_avg"] for p in params]
            squares = [self.state[p]["exp_avg_sq"] for p in params]
            torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_lerp_(means, grads, 1 - beta1)
            torch._foreach_mul_(squares, beta2)
            torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
            c1, c2 = 1 - beta1 ** group["step"], 1 - beta2 ** group["step"]
            denominators = torch._foreach_sqrt(squares)
            torch._foreach_div_(denominators, math.sqrt(c2))
            torch._foreach_add_(denominators, group["eps"])
            torch._foreach_addcdiv_(params, means, denominators, -group["lr"] / c1)


class KeepsNorms(torch.optim.Optimizer):
    """Keeps what it computed last for whoever asks, as transformers' Adafactor keeps the RMS; and a part of it."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, dict(lr=lr))
        self.log = []

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                state["rms"] = p.norm(2) / p.numel() ** 0.5
                norms = torch.stack([p.norm(1), p.norm(2), p.abs().max()])
                state["last"] = norms[1:]
                state["first"] = norms[0]
                p.add_(p.grad, alpha=-group["lr"] / state["step"])
        self.log.append(state["rms"])


class BySign(torch.optim.Optimizer):
    """Assigns its numbers by index, as Rprop does."""

    def __init__(self, params, lr=1e-2):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                update = torch.zeros_like(p)
                update[p.grad > 0] = -group["lr"]
                update[p.grad < 0] = group["lr"]
                if p.dim() == 2:
                    update[..., 0] = group["lr"] / 2
                p.add_(update)
