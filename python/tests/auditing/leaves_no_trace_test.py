"""An audit leaves everything as it was: hooks, gradients, state, numbers, generators."""

import pytest
import torch

import pianola
from twins import MLP, assert_same

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks", "_state_dict_hooks")


def everything(model, optimizer):
    """{name: value} of all that an audit might change; tensors are compared by object and by value."""
    seen = {"generator": torch.get_rng_state(), "grad mode": torch.is_grad_enabled()}
    for path, module in model.named_modules():
        seen[path + ".training"] = module.training
        seen[path + " attributes"] = sorted(module.__dict__)
        for name in HOOKS:
            seen[f"{path}.{name}"] = len(getattr(module, name))
    for name, parameter in model.named_parameters():
        seen[name + " itself"] = parameter
        seen[name + " requires grad"] = parameter.requires_grad
        seen[name] = parameter.detach().clone()
        seen[name + ".grad itself"] = parameter.grad
        seen[name + ".grad"] = None if parameter.grad is None else parameter.grad.clone()
        for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            found = getattr(parameter, hooks)
            seen[f"{name}.{hooks}"] = None if found is None else dict(found)
    for name, buffer in model.named_buffers():
        seen[name] = buffer.clone()
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            seen[f"state {id(parameter)} {name}"] = value.clone() if isinstance(value, torch.Tensor) else value
    seen["settings"] = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    return seen


def assert_untouched(before, after):
    assert before.keys() == after.keys()
    for name, value in before.items():
        if name.endswith(" itself"):
            assert after[name] is value, name
        elif isinstance(value, torch.Tensor):
            assert_same(name, after[name], value)
        else:
            assert after[name] == value, name


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("with_gradients", [True, False])
@pytest.mark.parametrize("audited", ["step", "module", "module in step"])
def test_an_audit_leaves_everything_as_it_was(device, set_to_none, with_gradients, audited):
    model = torch.nn.Sequential(MLP(), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(8, 16, device=device)

    def step():
        optimizer.zero_grad(set_to_none=set_to_none)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    step()
    optimizer.zero_grad(set_to_none=True)
    if with_gradients:
        model(x).sum().backward()
    before = everything(model, optimizer)
    if audited == "step":
        pianola.audit(step)
    elif audited == "module":
        pianola.audit(model, batches=[(x,)])
    else:
        pianola.audit(step, callables=[model])
    assert_untouched(before, everything(model, optimizer))


def test_a_hook_of_the_users_own_stays(device):
    model = MLP().to(device)
    x = torch.randn(8, 16, device=device)
    seen = []
    parameter = next(model.parameters())
    handle = parameter.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf))
    before = dict(parameter._post_accumulate_grad_hooks)
    pianola.audit(lambda: model(x).sum().backward(), callables=[model])
    assert dict(parameter._post_accumulate_grad_hooks) == before
    handle.remove()


def test_callables_graphed_before_an_audit_go_on(device):
    model = MLP().to(device)
    x = torch.randn(8, 16, device=device)
    twin = MLP().to(device)
    twin.load_state_dict(model.state_dict())
    pianola.make_graphed_callables(model, (x,))
    pianola.audit(lambda: twin(x).sum().backward(), callables=[twin])
    graphed = pianola.make_graphed_callables(twin, (x,))
    assert graphed.forward.info().through_autograd == 0 and graphed.forward.info().parameters > 0
    other = MLP().to(device)
    pianola.make_graphed_callables(other, (x,))
    original = type(other).forward
    pianola.audit(lambda: original(other, x).sum().backward(), callables=[other])
    other(x).sum().backward()
    assert all(one.grad is not None for one in other.parameters())
