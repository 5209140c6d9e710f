"""Evaluators that answer in their own time: objects of this process, or actors of the runtime."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from gmi_drl import runtime
from gmi_drl.roles.errors import EvaluatorLate, RoleError

from .standalone import Evaluator

TIMEOUT: Final = timedelta(minutes=5)  # for the first answer


class Fleet:
    """Evaluators by number. One is asked for one thing at a time, and is busy until it answers."""

    def __init__(self, evaluators: Sequence[Any], timeout: timedelta = TIMEOUT) -> None:
        """`evaluators`: `Evaluator` objects, or handles of actors of that class."""
        if not evaluators:
            raise RoleError("no evaluators; an optimizer needs one or more. Make some first.")
        if len(set(map(id, evaluators))) < len(evaluators):
            raise RoleError(
                "an evaluator is there more than once, and it samples for itself alone. Make one "
                "for each place, as by [rl.Evaluator(...) for _ in range(4)]."
            )
        self._evaluators, self.timeout = list(evaluators), timeout
        self._refs: dict[runtime.ObjectRef, int] = {}
        self._answers: deque[tuple[int, Any]] = deque()  # of objects, which answer at once

    @property
    def size(self) -> int:
        """Returns how many there are."""
        return len(self._evaluators)

    @property
    def busy(self) -> set[int]:
        """Returns the numbers of those that have not answered."""
        return {*self._refs.values(), *(number for number, _ in self._answers)}

    def ask(self, number: int, what: str, *arguments: Any) -> None:
        """Asks evaluator `number` for what its method `what` returns."""
        evaluator = self._evaluators[number]
        if isinstance(evaluator, Evaluator):
            self._answers.append((number, getattr(evaluator, what)(*arguments)))
        else:
            self._refs[getattr(evaluator, what).remote(*arguments)] = number

    def first(self) -> tuple[int, Any]:
        """Returns the number of the first evaluator to answer, and its answer.

        EvaluatorLate if none answers in time. Raises what an evaluator has raised.
        """
        if self._answers:
            return self._answers.popleft()
        ready, _ = runtime.wait(list(self._refs), timeout=self.timeout.total_seconds())
        if not ready:
            numbers = sorted(self._refs.values())
            late, told = ", ".join(map(str, numbers)), "".join(map(self.last_death, numbers))
            raise EvaluatorLate(
                f"timed out after {self.timeout.total_seconds():g} s: evaluator {late} has not "
                f"answered. If it only takes longer, raise `timeout`.{told}"
            )
        number = self._refs.pop(ready[0])
        return number, runtime.get(ready[0])

    def last_death(self, number: int) -> str:
        """Returns how evaluator `number` ended before it was last restarted; "" if it never was."""
        evaluator = self._evaluators[number]
        deaths = [] if isinstance(evaluator, Evaluator) else runtime.deaths(evaluator)
        if not deaths:
            return ""
        return f"\nRestarts of evaluator {number}: {len(deaths)}, the last one as {deaths[-1]}"

    def put(self, value: Any) -> Any:
        """Returns what stands for `value` in arguments: a reference, where that spares copies."""
        if any(isinstance(member, Evaluator) for member in self._evaluators):
            return value  # objects take no references
        return runtime.put(value)

    def close(self) -> None:
        """Ends those that are actors; objects let their environments go."""
        self._refs.clear()
        self._answers.clear()
        actors = [member for member in self._evaluators if not isinstance(member, Evaluator)]
        if actors and runtime.is_initialized():
            runtime.kill(actors)
        for member in self._evaluators:
            if isinstance(member, Evaluator):
                member.close()
