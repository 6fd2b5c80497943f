"""What the tests of trainers ask of a graphed step."""


class Replayed:
    """Of whatever names its graphed step."""

    @property
    def signatures(self):
        return self.graphed_step().info().signatures

    @property
    def replays(self):
        return sum(one.replays for one in self.signatures)

    @property
    def reasons(self):
        return [one.reason for one in self.signatures if one.reason]
