"""Whether the state has settled is a tensor, to be read after the replay."""
import torch


def program(device):
    transition = torch.rand(5, 5, device=device).softmax(0)
    state = torch.full((5,), 0.2, device=device)

    def step():
        following = transition @ state
        settled = torch.isclose(following, state).all()
        state.copy_(following)
        return settled

    return step
