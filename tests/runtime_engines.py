"""Starts the engine that is tested, and says what is different on Ray: one table for all tests.

With GMI_DRL_TEST_ENGINE=ray in the environment tests run on a Ray cluster of this host.
"""

import os

from gmi_drl import runtime
from gmi_drl.runtime.api import session

ON_RAY = os.environ.get("GMI_DRL_TEST_ENGINE") == "ray"


def options(**chosen):
    """Returns the options of `init` for the engine that is tested."""
    if not ON_RAY:
        return chosen
    cluster = {"engine": "ray", "address": "local", "object_store_bytes": 256 << 20}
    return {"num_cpus": 2, **cluster, **chosen}


def begin(**chosen):
    """Starts a runtime on the engine that is tested."""
    runtime.init(**options(**chosen))


def end():
    """Ends the runtime, of which no folder may be left."""
    folder = ""
    if ON_RAY:
        from gmi_drl.runtime.engines.ray import nodes

        folder = nodes._folder
    runtime.shutdown()
    assert not folder or not os.path.exists(folder)


def held():
    """Returns the ids of the objects and actors that this process holds."""
    driver = session.driver()
    if ON_RAY:
        return set(driver.objects.entries)
    driver.post(int)  # what was dropped is looked at with the next command
    return set(driver.objects.slots)


# What is different. LOOKS is about the test; each of the others is a row of docs/hosts.md.
LOOKS = "looks into engine local"
ATTEMPT = "the attempt of a task"
CALLED_AGAIN = "what replayed calls call is not called again"
DEVICE = "`device=`"
ENVIRONMENT = "the environment variables and the working directory of your program"
FOUND = "an actor found by its name does not end before it is called"
GENERATOR = "a generator as argument, or in a value"
HOW_IT_DIED = "how a process died"
IN_ORDER = "calls stay in order for each caller"
LENT = "a CPU that a waiting task lends goes to what was submitted first"
MEMFD = "a `Memfd` as argument"
NAME_IS_FREE = "the name of an actor is free as soon as the last handle of it is dropped"
ONCE = "streams of generators of actors come once across a crash"
RUNNING_METHOD = "`cancel` of a method that runs"
STACKS = "`write_stacks`"

# The files of tests/runtime that run on both engines. Of the others test_refs.py starts no runtime,
# and test_unretrieved_errors.py reads what engine ray does not print.
FILES = (
    "test_actor_recovery.py", "test_actors.py", "test_assigned.py", "test_bad_input.py",
    "test_calls.py", "test_cancel.py", "test_captured.py", "test_errors.py", "test_futures.py",
    "test_generators.py", "test_methods.py", "test_names.py", "test_nested.py", "test_objects.py",
    "test_resources.py", "test_surroundings.py", "test_tasks.py", "test_util.py",
)  # fmt: skip

# file: {test: what is different}; the name of a test with or without its parameters
DIFFERENT = {
    "test_actor_recovery.py": {
        "test_when_the_restarts_are_used_up_it_is_dead": HOW_IT_DIED,
        "test_pipelined_calls_across_kills_are_answered_once_and_in_order": IN_ORDER,
        "test_callers_keep_their_order_across_a_kill": IN_ORDER,
        "test_the_method_in_flight_is_run_again_on_the_state_before_it": IN_ORDER,
        "test_what_a_method_called_is_not_called_again_when_it_is_replayed": CALLED_AGAIN,
        "test_the_actors_a_replayed_method_started_are_the_ones_there_are": CALLED_AGAIN,
        "test_what_init_started_and_called_is_known_again_and_goes_with_the_actor": CALLED_AGAIN,
        "test_a_call_one_of_whose_results_was_dropped_is_not_made_again": CALLED_AGAIN,
        "test_calls_that_went_to_the_dead_process_come_before_later_ones": LOOKS,
        "test_a_method_that_was_cancelled_is_not_run_again_after_a_crash": RUNNING_METHOD,
        "test_a_call_that_waits_to_be_sent_again_can_be_cancelled": LOOKS,
        "test_an_actor_whose_state_cannot_be_restored_says_why": LOOKS,
        "test_a_method_that_always_kills_it_uses_the_restarts_up": HOW_IT_DIED,
        "test_only_calls_that_were_running_in_their_group_are_given_up": IN_ORDER,
        "test_a_lost_answer_of_a_method_says_why_it_cannot_be_made_again": LOOKS,
        "test_items_of_a_generator_come_once_across_a_kill": ONCE,
    },
    "test_actors.py": {
        "test_the_name_of_an_actor_is_free_as_soon_as_its_last_handle_is_dropped": NAME_IS_FREE,
        "test_an_actor_that_is_found_by_its_name_in_time_does_not_end": LOOKS,
        "test_calls_of_a_dead_actor_fail_at_once_with_the_cause": HOW_IT_DIED,
        "test_an_actor_with_threads_can_leave_and_cuts_its_other_calls_off": HOW_IT_DIED,
        "test_an_async_actor_can_leave": HOW_IT_DIED,
    },
    "test_calls.py": {
        "test_records_that_are_dropped_here_are_all_counted": LOOKS,
        "test_shared_memory_goes_both_ways": MEMFD,
    },
    "test_cancel.py": {
        "test_what_a_method_calls_before_it_hears_that_it_was_cancelled_is_not_kept": LOOKS,
        "test_what_a_cancelled_task_has_called_is_cancelled_with_it": LOOKS,
        "test_what_a_cancelled_call_calls_later_is_cancelled_with_it": RUNNING_METHOD,
        "test_a_cancelled_call_can_call_others_to_clean_up[method]": RUNNING_METHOD,
        "test_a_cancelled_call_can_call_others_to_clean_up[logged method]": RUNNING_METHOD,
        "test_queued_and_running_methods_can_be_cancelled": RUNNING_METHOD,
        "test_an_async_method_that_is_cancelled_before_the_loop_hears_of_it_is_never_run": LOOKS,
        "test_an_async_method_that_is_cancelled_while_it_waits_for_its_turn_is_never_run":
            RUNNING_METHOD,
    },
    "test_captured.py": {
        "test_an_actor_class_captures_and_its_actor_keeps_it_across_a_restart": CALLED_AGAIN,
        "test_a_lost_result_is_made_again_by_a_function_that_captures": LOOKS,
    },
    "test_errors.py": {
        "test_exit_in_init": HOW_IT_DIED,
        "test_a_death_is_named": HOW_IT_DIED,
        "test_exit_with_a_text_prints_it": HOW_IT_DIED,
        "test_a_process_at_work_writes_its_stacks_and_one_that_is_stopped_does_not": STACKS,
        "test_the_last_forty_lines_of_the_log_are_in_the_error": HOW_IT_DIED,
        "test_death_can_be_waited_for": HOW_IT_DIED,
    },
    "test_generators.py": {
        "test_a_task_that_waited_for_a_generator_takes_its_cpu_back": LOOKS,
    },
    "test_methods.py": {
        "test_a_cancelled_method_is_not_retried": RUNNING_METHOD,
        "test_an_actor_that_had_retried_is_rebuilt_to_the_same_state": CALLED_AGAIN,
    },
    "test_names.py": {
        "test_an_actor_found_by_its_name_does_not_end_before_it_is_called": FOUND,
        "test_an_actor_rebuilt_after_it_found_one_by_name_calls_nothing_anew": CALLED_AGAIN,
    },
    "test_nested.py": {
        "test_a_blocked_task_lends_its_cpu_to_those_that_were_there_before": LENT,
        "test_a_task_that_no_longer_waits_for_all_counts_as_running_again": LOOKS,
        "test_threads_of_an_actor_wait_each_for_their_own": LOOKS,
        "test_a_task_after_one_that_was_cancelled_while_it_waited_lends_its_cpu": LOOKS,
        "test_an_async_actor_that_waits_no_longer_counts_as_running_again": LOOKS,
    },
    "test_objects.py": {
        "test_large_values_are_views_of_one_memory": LOOKS,
        "test_memory_is_free_when_reference_and_views_are_gone": LOOKS,
        "test_a_lost_result_is_made_again_by_the_one_task_that_is_needed": LOOKS,
        "test_what_it_was_made_from_is_made_again_if_it_is_lost_too": LOOKS,
        "test_what_nobody_held_any_more_is_made_again_when_it_is_needed": LOOKS,
        "test_a_task_that_already_waits_gets_what_is_made_again": LOOKS,
        "test_one_lost_result_of_several_is_made_again_and_the_others_stay": LOOKS,
        "test_what_was_written_of_results_that_cannot_all_be_sent_is_free": LOOKS,
        "test_what_a_generator_has_given_is_free_once_it_was_read_and_dropped": LOOKS,
        "test_what_a_call_that_is_not_run_again_has_read_of_a_generator_is_free": LOOKS,
        "test_a_generator_that_two_read_gives_all_to_both": GENERATOR,
        "test_a_lost_item_of_a_generator_is_made_again": LOOKS,
        "test_a_put_value_that_is_lost_says_that_it_cannot_be_made_again": LOOKS,
        "test_an_argument_that_is_lost_while_its_calls_wait_fails_the_calls": LOOKS,
    },
    "test_resources.py": {
        "test_what_no_device_has_is_refused_in_words[options4-4]": DEVICE,
        "test_what_waits_long_for_what_actors_hold_is_told_of": LOOKS,
    },
    "test_surroundings.py": {
        "test_the_fork_server_has_one_thread_and_has_not_touched_cuda": LOOKS,
        "test_more_threads_than_cores_after_the_fork": LOOKS,
        "test_an_actor_has_the_variables_that_its_starter_has_then": ENVIRONMENT,
        "test_each_actor_leads_a_process_group_in_the_fork_servers_session": LOOKS,
        "test_an_actor_has_only_its_own_two_sockets": LOOKS,
        "test_the_working_directory_is_the_launchers": ENVIRONMENT,
    },
    "test_tasks.py": {
        "test_functions_are_not_kept_for_ever_and_can_be_called_again": LOOKS,
        "test_a_function_that_cannot_be_read_fails_its_calls": LOOKS,
        "test_a_message_that_cannot_be_handled_does_not_stop_those_behind_it": LOOKS,
        "test_a_task_says_that_the_driver_cannot_import_what_its_calls_are_tried_again_for": LOOKS,
        "test_a_generator_can_be_read_where_it_was_not_started": GENERATOR,
        "test_a_task_whose_worker_dies_is_run_again_three_times": ATTEMPT,
        "test_those_that_waited_behind_a_dying_task_lose_no_attempt": ATTEMPT,
        "test_the_ids_of_what_a_task_calls_are_the_same_when_it_is_run_again": CALLED_AGAIN,
        "test_a_class_that_cannot_be_imported_may_be_what_is_tried_again": LOOKS,
        "test_what_died_and_is_begun_again_finds_the_answers_that_it_had": CALLED_AGAIN,
    },
}  # fmt: skip
