"""Says what of the runtime's behaviour is different on Ray, and why: one table for all tests."""

# The tests that run on both engines.
FILES = (
    "test_actor_recovery.py", "test_actors.py", "test_calls.py", "test_cancel.py",
    "test_captured.py", "test_errors.py", "test_futures.py", "test_generators.py",
    "test_methods.py", "test_names.py", "test_nested.py", "test_tasks.py", "test_util.py",
)  # fmt: skip

DIFFERENT = {}  # file: {test: what is different}
