"""Actors: objects in processes of their own; one that is killed comes back with its state.

python examples/runtime/actors.py
"""

import asyncio
import os
import signal
from typing import Any

from gmi_drl import runtime


@runtime.remote(max_restarts=3)
class Account:
    """After a crash the calls it had answered are run again: it is what it was."""

    def __init__(self, balance: int) -> None:
        self.balance = balance

    def pay_in(self, amount: int) -> int:
        self.balance += amount
        return self.balance

    def pay_out(self, amount: int) -> int:
        if amount > self.balance:
            raise ValueError(f"{amount} is more than the {self.balance} there are")
        self.balance -= amount
        return self.balance


@runtime.remote(max_restarts=3, checkpoint_every=100)
class Tally:
    """With checkpoints, at most the calls since the last one are run again."""

    def __init__(self) -> None:
        self.count = self.replayed = 0

    def add(self) -> int:
        self.count += 1
        self.replayed += runtime.context().replayed
        return self.count

    def num_replayed(self) -> int:
        return self.replayed

    def save(self) -> int:
        return self.count

    def restore(self, count: int) -> None:
        self.count = count


@runtime.remote
class Waiter:
    """Async methods take turns where they await."""

    async def serve(self, ref_in_list: list[runtime.ObjectRef]) -> str:
        return f"served {await ref_in_list[0]}"

    async def beat(self, count: int) -> int:
        for _ in range(count):
            await asyncio.sleep(0)
        return count


@runtime.remote
def pay_in_from_a_task(account: runtime.ActorHandle, amount: int) -> int:
    """Handles can be given to tasks and other actors."""
    return runtime.get(account.pay_in.remote(amount))


def kill_dash_nine(actor: runtime.ActorHandle) -> None:
    """What the kernel does when memory has run out."""
    pid = runtime.process_id(actor)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def main(**engine: Any) -> None:
    runtime.init(**{"num_cpus": 2} | engine)

    account = Account.options(name="savings").remote(100)
    print("balance:", runtime.get(account.pay_in.remote(50)))
    kill_dash_nine(account)
    print("after kill -9:", runtime.get(account.pay_out.remote(30)))
    print("its deaths:", [str(death).splitlines()[0] for death in runtime.deaths(account)])
    print("by name, from a task:", runtime.get(pay_in_from_a_task.remote(account, 5)))
    assert runtime.get_actor("savings") == account
    try:
        runtime.get(account.pay_out.remote(1000))
    except ValueError as error:
        print("refused:", error.cause)

    tally = Tally.remote()
    runtime.get([tally.add.remote() for _ in range(250)])
    kill_dash_nine(tally)
    print("tally goes on at:", runtime.get(tally.add.remote()))
    print("calls run again:", runtime.get(tally.num_replayed.remote()))

    waiter = Waiter.remote()
    later = waiter.serve.remote([account.pay_in.remote(0)])
    print(runtime.get([waiter.beat.remote(3), later]))

    runtime.kill(account)
    try:
        runtime.get(account.pay_in.remote(1))
    except runtime.ActorDiedError as error:
        print("dead:", error.reason)

    runtime.shutdown()


if __name__ == "__main__":
    main()
