"""Games of two players, for search: tic-tac-toe, connect four, OpenSpiel's, and yours."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from gmi_drl.placement.faults import closest, install

from .errors import GameError, GameFault, IllegalMove, NetworkNotFinite
from .game import Game, Symmetry, are_legal, moves_of, step_legal, stepped
from .in_a_row import InARow

__all__ = [
    "GAMES", "OPEN_SPIEL", "Game", "GameError", "GameFault", "IllegalMove", "NetworkNotFinite",
    "Symmetry", "are_legal", "game_faults", "make_game", "moves_of", "step_legal", "stepped",
]  # fmt: skip

OPEN_SPIEL: Final = "OpenSpiel/"  # begins the ids of OpenSpiel's games


GAMES: Final[dict[str, Callable[[], Game]]] = {
    "ConnectFour-v0": partial(InARow, "ConnectFour-v0", 6, 7, 4, falls=True),
    "TicTacToe-v0": partial(InARow, "TicTacToe-v0", 3, 3, 3, falls=False),
}


def make_game(env_id: str) -> Game:
    """Returns the game of an id: one of `GAMES`, OpenSpiel/name, or module:Class of yours.

    What the functions of yours return is checked at each call.
    """
    if env_id in GAMES:
        return GAMES[env_id]()
    if env_id.startswith(OPEN_SPIEL):
        from .open_spiel import OpenSpielGame

        return OpenSpielGame(env_id.removeprefix(OPEN_SPIEL))
    from gmi_drl.roles.loading import load_class

    from .checked import CheckedGame

    return CheckedGame(load_class(env_id, kind="game")(), env_id)


def game_faults(env_id: str) -> list[str]:
    """Returns why there is no game of an id."""
    if env_id in GAMES:
        return []
    is_open_spiels = env_id.startswith(OPEN_SPIEL)
    if not is_open_spiels and ":" not in env_id:
        near = closest(env_id, GAMES)
        return [
            f"env.id={env_id!r} is no game; known: {', '.join(GAMES)}, {OPEN_SPIEL}name, and "
            f"module:Class of yours.{f' Did you mean {near}?' if near else ''}"
        ]
    from .checked import try_game

    try:
        try_game(make_game(env_id))
    except (GameError, GameFault) as error:
        return [f"env.id={env_id!r}: {error}"]
    except Exception as error:  # whatever someone's module raises, or OpenSpiel
        if is_open_spiels and isinstance(error, ModuleNotFoundError):
            return [
                f"env.id={env_id!r} needs the package open_spiel, which is not installed. "
                f"{install('open_spiel')}."
            ]
        if is_open_spiels:
            rule = (str(error).strip() or type(error).__name__).splitlines()[0]
            return [f"env.id={env_id!r}: {rule}. Use another of pyspiel.registered_names()."]
        return [
            f"env.id={env_id!r}: no game is made of it ({type(error).__name__}: {error}). Give "
            "module:Class of a class that is made without arguments, beside the config file."
        ]
    return []
