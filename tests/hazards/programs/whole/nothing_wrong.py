"""The step hands its work to nobody: it does nothing that a graph could hold."""


def program(device):
    pending = ["forward", "backward"]

    def step():
        return len(pending)

    # hazard: PG1201
    return step
