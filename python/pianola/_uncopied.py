"""What is bound to this process and to addresses of its memory: neither copied nor pickled."""

from typing import Any, NoReturn

from ._errors import refuse


class Uncopied:
    """A base class, before all others. `_copied_instead` is what to do in place of a copy.

    Raises, when copied or pickled:
        UsageError: always.
    """

    _copied_instead = ""

    def _refuse_to_be_copied(self, how: str) -> NoReturn:
        refuse(
            f"a {type(self).__name__} cannot be {how}: it is bound to this process, and to addresses of its memory", self._copied_instead
        )

    def __copy__(self) -> NoReturn:
        self._refuse_to_be_copied("copied")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self._refuse_to_be_copied("deep-copied")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self._refuse_to_be_copied("pickled")
