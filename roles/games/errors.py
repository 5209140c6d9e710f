"""Defines the errors of games.

GameError       a game broke a rule that holds for all games
+-- IllegalMove a move that the rules do not allow in that state
GameFault       a function or an attribute of a user's game is not what it must be
NetworkNotFinite a network gave NaN or infinity for a state
"""

from __future__ import annotations

from collections.abc import Sequence

from gmi_drl.roles.errors import RoleError


class GameError(RoleError):
    """Tells that a game broke a rule that holds for all games; names the game and its state."""

    def __init__(self, game: str, state: Sequence[int], rule: str) -> None:
        super().__init__(game, list(state), rule)
        self.game, self.state, self.rule = game, list(state), rule

    def __str__(self) -> str:
        return f"game {self.game}, state {self.state}: {self.rule}"


class IllegalMove(GameError):
    """Tells that a move cannot be made; names the game, the state and the move."""

    def __init__(self, game: str, state: Sequence[int], move: int, said: str = "") -> None:
        super().__init__(game, state, said)
        self.args = (game, list(state), move, said)
        self.move, self.said = move, said

    def __str__(self) -> str:
        reason = f"step raised {self.said}, and legal allows it" if self.said else "it is illegal"
        return (
            f"game {self.game}, state {self.state}, move {self.move}: {reason}. Make a move that "
            "`legal` allows there, and have `legal` allow what `step` takes."
        )


class GameFault(RoleError):
    """Tells which function or attribute of a user's game is wrong, in whatever state."""

    def __init__(self, game: str, rule: str) -> None:
        super().__init__(game, rule)
        self.game, self.rule = game, rule

    def __str__(self) -> str:
        return f"game {self.game}: {self.rule}"


class NetworkNotFinite(RoleError):
    """Tells that the network of a search gave NaN or infinity; names the game and the state."""

    def __init__(self, game: str, state: Sequence[int]) -> None:
        super().__init__(game, list(state))
        self.game, self.state = game, list(state)

    def __str__(self) -> str:
        return (
            f"game {self.game}, state {self.state}: the network gave a value or preferences that "
            "are not finite, so training has diverged. Checkpoints are kept. Lower "
            "algorithm.learning_rate, and begin anew or resume; or look at what `observe` gives."
        )
