"""Runs the examples beside this one on a Ray cluster: the same code, on another engine.

python examples/runtime/on_ray.py actors tasks              (starts a Ray of its own on this host)
python examples/runtime/on_ray.py --address 10.0.0.1:6379 parameter_server
"""

import argparse
import importlib

EXAMPLES = ("actors", "evolution", "parameter_server", "policy_gradient", "tasks", "values")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("example", nargs="*", choices=[*EXAMPLES, []], help="which ones (all)")
    parser.add_argument("--address", default="local", help="host:port of a Ray cluster")
    chosen = parser.parse_args()
    for name in chosen.example or EXAMPLES:
        print(f"--- {name}")
        engine = {"engine": "ray", "address": chosen.address}
        if chosen.address != "local":  # which has what it has
            engine |= {"num_cpus": None, "object_store_bytes": None}
        importlib.import_module(name).main(**engine)


if __name__ == "__main__":
    main()
