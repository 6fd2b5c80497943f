"""torch.allclose answers with a bool of the host."""
import torch


def program(device):
    transition = torch.rand(5, 5, device=device).softmax(0)
    state = torch.full((5,), 0.2, device=device)

    def step():
        following = transition @ state
        settled = torch.allclose(following, state)  # hazard: PG101|PG102
        state.copy_(following)
        return settled

    return step
