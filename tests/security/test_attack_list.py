"""The list of attacks: each has a test, wherever in the tree it stands, and a number in the threat model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from security.planted_bugs import BUGS, ROOT, Bug

TESTS = Path(__file__).resolve().parents[1]
THREAT_MODEL = TESTS.parent / "docs" / "threat-model.md"

#: surface -> (threat, attack, test below ``tests/``)
ATTACKS: dict[str, list[tuple[str, str, str]]] = {
    "services on a device": [
        ("R120", "network", "device_runtime/isolated/test_escapes.py::test_it_reaches_no_network"),
        ("R120", "files read", "device_runtime/isolated/test_escapes.py::test_it_reads_no_file"),
        ("R120", "files written", "device_runtime/isolated/test_escapes.py::test_it_writes_no_file"),
        ("R120", "fork, exec", "device_runtime/isolated/test_escapes.py::test_it_makes_and_signals_no_process"),
        ("R120", "in which folder, and under whose name, ODP is installed",
         "device_runtime/isolated/test_escapes.py::test_n353_it_does_not_see_where_it_is_installed"),
        ("R121", "hanging", "device_runtime/isolated/test_escapes.py::"
         "test_what_does_not_answer_is_killed_and_the_next_call_works"),
        ("R121", "eating memory", "device_runtime/isolated/test_escapes.py::test_it_cannot_eat_memory"),
        ("R121", "huge answer", "device_runtime/isolated/test_escapes.py::test_a_huge_answer_is_cut_off"),
        ("R121", "deep nesting", "device_runtime/isolated/test_escapes.py::test_deep_nesting_is_refused"),
        ("R121", "arbitrary messages",
         "device_runtime/isolated/test_replies.py::test_any_json_is_an_answer_within_its_rights_or_refused"),
        ("R122", "writing where it may not",
         "device_runtime/isolated/test_escapes.py::test_no_handler_writes_where_it_has_no_right_to"),
        ("R123", "hiding private data in memory for a call whose answer leaves",
         "device_runtime/isolated/test_escapes.py::"
         "test_nothing_that_a_handler_leaves_in_memory_is_there_in_the_next_call"),
        ("R210", "hiding private data in the kernel for a call whose answer leaves: pages, page faults, their times, "
         "free memory, inode numbers, words of shared code", "security/test_isolated_channels.py::"
         "test_a_private_handler_hides_nothing_in_the_kernel_that_a_public_one_finds"),
        ("R210", "by inherited descriptors",
         "device_runtime/isolated/test_escapes.py::test_it_has_its_channel_and_no_other_descriptor"),
        ("R210", "by the socket of the template, in an app with hundreds of open files",
         "device_runtime/isolated/test_escapes.py::test_it_has_no_other_descriptor_where_the_app_has_hundreds"),
        ("R123", "by numbers of processes",
         "device_runtime/isolated/test_escapes.py::test_its_process_number_does_not_count_the_calls"),
        ("R210", "by pages of files that all processes map",
         "device_runtime/isolated/test_escapes.py::test_no_page_of_a_file_is_mapped_in_it"),
    ],
    "the person's page": [
        ("R407", "silence inside a second request of a connection", "security/test_view_sockets.py::"
         "test_r407_silence_inside_a_second_request_ends_a_connection"),
        ("R407", "wrong addresses, opened by a web page in the person's browser", "security/test_view_sockets.py::"
         "test_r407_wrong_addresses_of_any_page_never_keep_the_right_one_out"),
        ("R211", "64 connections that say nothing, drip, or never read",
         "security/test_view_sockets.py::test_the_persons_page_answers_beside_64_slow_connections"),
        ("R211", "requests without end, with two lengths or none",
         "device_runtime/view/test_server.py::test_what_is_no_request_is_answered_once_and_repeats_nothing"),
    ],
    "state folders": [
        ("R212", "a umask of 0 in a folder that everybody may write to",
         "security/test_state_folders.py::test_nothing_that_a_program_keeps_is_open_to_other_users"),
        ("R212", "limits of another user, by a link to a file or a folder",
         "security/test_state_folders.py::test_limits_that_another_user_could_have_replaced_are_not_used"),
    ],
    "what a device remembers of a log": [
        ("R213", "more endorsements in ten years than a device ever watches",
         "trust/log/test_client.py::"
         "test_over_ten_years_of_monthly_endorsements_a_device_remembers_little_and_misses_no_withdrawal"),
        ("R213", "a checkpoint of the future, to have a withdrawal forgotten",
         "trust/log/test_client.py::test_a_log_prunes_nothing_by_a_time_that_the_device_does_not_share"),
        ("R213", "a clock that was wrong together with the log's",
         "trust/log/test_client.py::test_what_was_pruned_is_found_again_where_a_clock_made_it_look_ended"),
    ],
    "catalogues": [
        ("R294", "tampered, forked, cut or foreign differences",
         "device_runtime/tasks/test_catalogues.py::test_r294_a_new_host_refuses_what_does_not_lead_to_the_named_hash"),
        ("R294", "rollback, and two versions of one number",
         "device_runtime/tasks/test_catalogues.py::test_r294_a_host_refuses_a_fork_and_a_rollback_of_what_it_knows"),
        ("R295", "learning from requests which items a device knows",
         "security/test_transcripts.py::"
         "test_r295_devices_fetch_their_catalogue_alike_whatever_items_they_know"),
        ("R296", "lies about catalogues under proper signatures",
         "trust/log/test_catalogue_entries.py::test_a_catalogue_that_lies_fails_the_audit"),
    ],
    "evidence": [
        ("R8", "replayed evidence", "trust/enclave/test_verifier.py::test_a_replayed_token_is_refused_by_its_nonce"),
        ("R8", "evidence of another genuine enclave",
         "security/test_evidence_attacks.py::test_r8_evidence_of_another_genuine_enclave_is_not_this_ones"),
        ("R8", "swapped HPKE key; report for key A with signature of B",
         "security/test_evidence_attacks.py::test_r8_the_keys_of_one_enclave_are_not_attested_by_the_report_of_another"),
        ("R8", "signature of another token of the same chip",
         "trust/enclave/test_verifier.py::test_the_signature_of_another_token_of_the_same_chip_does_not_fit"),
        ("R11", "debug bit", "trust/enclave/test_verifier.py::test_debugging_is_accepted_only_where_it_is_pinned"),
        ("R8", "wrong root",
         "trust/enclave/test_verifier.py::test_evidence_of_a_platform_with_another_root_is_refused"),
        ("R8", "expired chain", "trust/enclave/test_verifier.py::test_an_expired_chain_is_refused"),
        ("R9", "relaxed policy: epsilon, cohort, access patterns",
         "security/test_evidence_attacks.py::"
         "test_an_enclave_under_another_policy_is_refused_whichever_policy_its_host_shows"),
        ("R9", "policy missing, re-serialised, or with a query more",
         "security/test_evidence_attacks.py::"
         "test_a_policy_in_another_spelling_is_refused_even_where_its_hash_is_listed"),
        ("R10", "changed code",
         "trust/enclave/test_image_building.py::test_one_changed_byte_changes_the_digest_and_changing_it_back_restores_it"),
        ("R8", "clock moved either way",
         "trust/enclave/test_verifier.py::test_a_clock_that_is_a_minute_behind_still_works_and_more_does_not"),
    ],
    "uploads": [
        ("R13", "duplicated", "security/test_uploads.py::test_r13_duplicates_of_every_kind_count_once"),
        ("R13", "truncated, cross-round, cross-task, cross-policy",
         "security/test_uploads.py::test_what_is_not_for_this_enclave_task_round_and_model_is_malformed"),
        ("R42", "sealed for another policy",
         "security/test_uploads.py::test_what_is_not_for_this_enclave_task_round_and_model_is_malformed"),
        ("R12", "over-norm, over-weight, over-target, repeated and unknown items",
         "security/test_uploads.py::test_what_would_move_a_sum_by_more_than_is_charged_is_refused"),
        ("R12", "NaN, inf, overflow",
         "security/test_uploads.py::"
         "test_r12_bytes_that_are_no_finite_float_are_read_as_integers_within_bounds_or_refused"),
        ("R43", "more rounds than the task has",
         "security/test_uploads.py::"
         "test_r43_a_device_counts_at_most_once_per_round_and_in_no_more_rounds_than_the_task_has"),
        ("R43", "linking a device across rounds",
         "security/test_uploads.py::test_r43_what_is_kept_of_a_pseudonym_is_another_value_in_every_round"),
        ("R42", "large, sealed for another policy",
         "trusted_aggregator/enclave/test_process.py::"
         "test_a_large_contribution_opens_under_the_policy_of_its_device_only"),
        ("R71", "dense, beyond the bound by one unit, or near 2^31",
         "algorithms/dense/test_dense_query.py::test_a_vector_beyond_the_bound_is_refused"),
        ("R72", "segments cut, extended, reordered, mixed",
         "crypto/test_segments.py::test_whatever_is_done_to_a_message_it_does_not_open"),
        ("R72", "streams cut, short, long, repeated",
         "trusted_aggregator/host/test_large_contributions.py::test_a_stream_that_is_not_whole_leaves_nothing"),
        ("R73", "a stream without an end",
         "trusted_aggregator/host/test_large_contributions.py::test_a_stream_that_is_too_long_is_not_read_on"),
        ("R73", "more contributions than the sums hold",
         "trusted_aggregator/host/test_large_contributions.py::test_the_round_takes_no_more_than_the_declared_maximum"),
        ("R76", "masked: a seed used twice",
         "trusted_aggregator/modes/masked/test_masked_rounds.py::test_a_seed_that_comes_twice_is_refused"),
        ("R76", "masked: flipped bits, half a contribution",
         "trusted_aggregator/modes/masked/test_masked_rounds.py::test_a_flipped_bit_of_either_half_is_refused_and_leaves_nothing"),
        ("N14", "masked: a vector beyond its bound",
         "trusted_aggregator/modes/masked/test_masked_rounds.py::test_a_dishonest_vector_spoils_the_sum_and_no_more"),
        ("R7", "orders and tasks of somebody else",
         "trusted_aggregator/enclave/test_core.py::test_task_and_orders_need_the_developers_signature"),
    ],
    "ledger": [
        ("R19", "sealed-state rollback, ledger replay",
         "security/test_ledger_attacks.py::"
         "test_r19_no_mixture_of_stored_states_gives_a_second_release_or_a_second_budget"),
        ("R19", "two enclaves forked from one snapshot, concurrent charges",
         "security/test_ledger_attacks.py::test_r19_forks_of_one_snapshot_that_charge_at_once_release_once"),
        ("R19", "new keys on the same platform",
         "trusted_aggregator/enclave/test_crashes.py::test_new_keys_on_the_same_platform_get_no_new_budget"),
        ("R16", "another set for the charged noise",
         "trusted_aggregator/enclave/test_crashes.py::test_another_set_for_the_charged_noise_voids_the_round_and_the_charge_stays"),
        ("R20", "clock moved either way",
         "security/test_ledger_attacks.py::test_r20_the_enclave_asks_no_clock_so_moving_it_changes_nothing"),
        ("R25", "understated epsilon",
         "privacy/test_ledger.py::test_an_auditor_notices_an_understated_epsilon_even_in_an_unbroken_chain"),
    ],
    "masked sums": [
        ("R75", "mismatched sets",
         "trusted_aggregator/modes/masked/test_masked_rounds.py::"
         "test_a_sum_over_another_set_than_the_enclaves_is_refused_and_the_right_one_released"),
        ("R75", "a set of one",
         "trusted_aggregator/modes/masked/test_masked_rounds.py::test_a_host_cannot_release_a_set_below_the_minimum"),
        ("R74", "another sum than the set's",
         "trusted_aggregator/modes/masked/test_masked_rounds.py::"
         "test_a_sum_of_other_vectors_under_the_right_name_is_noise_and_not_a_persons_numbers"),
        ("R74", "a sum moved to where numbers wrap around",
         "crypto/secure_aggregation/test_masked.py::"
         "test_a_host_that_moves_the_sum_to_where_numbers_wrap_learns_nothing_but_the_noisy_sum"),
    ],
    "sessions of clients": [
        ("R190", "an honest client's key in another spelling",
         "security/test_secure_aggregation.py::"
         "test_r190_a_mask_key_in_another_spelling_ends_the_session_before_anybody_reveals"),
        ("R191", "a key plus a point of low order: another key, the same shared secret",
         "security/test_secure_aggregation.py::"
         "test_r191_masks_with_two_keys_of_one_shared_secret_do_not_cancel"),
        ("R192", "a session of all corrupt devices of a roster and one honest one",
         "security/test_secure_aggregation.py::"
         "test_r192_a_session_of_the_corrupt_devices_of_a_roster_and_one_honest_one_is_never_held"),
        ("R192", "any session that a host can make of a roster",
         "security/test_secure_aggregation.py::"
         "test_r192_epsilon_is_not_above_the_charge_in_any_session_that_a_host_can_make_of_a_roster"),
        ("R195", "reading a client's memory after a session",
         "crypto/secure_aggregation/test_erasure.py::test_a_client_whose_part_is_done_keeps_nothing_secret"),
        ("R196", "attempts begun again, until an order serves the server",
         "device_runtime/round/test_secagg.py::"
         "test_a_device_reveals_its_part_of_an_order_once_for_each_attempt_whoever_restarts"),
        ("R196", "a second vector after the person erased the ledger",
         "device_runtime/round/test_secagg.py::"
         "test_a_device_that_made_its_vector_makes_no_second_one_even_where_its_ledger_was_erased"),
        ("R197", "a stranger that ends every session",
         "e2e/test_secagg.py::"
         "test_r197_a_stranger_that_ends_every_session_ends_the_task_as_failed_and_devices_are_told"),
        ("R198", "silent clients on every seat",
         "trusted_aggregator/modes/secagg/test_limits.py::"
         "test_r198_silent_clients_take_no_seat_from_those_that_come_after_them"),
        ("R198", "many clients of one address",
         "trusted_aggregator/modes/secagg/test_limits.py::"
         "test_r198_clients_of_one_address_have_few_seats_and_others_come_in"),
        ("R198", "more sessions than there is memory for",
         "trusted_aggregator/modes/secagg/test_limits.py::"
         "test_r198_sessions_begin_where_there_is_memory_and_gather_on_until_there_is"),
        ("R193", "an order that does not protect everybody, chosen among four",
         "privacy/test_concentrated.py::"
         "test_that_the_graph_of_a_session_fails_is_charged_to_delta_in_every_round"),
        ("R190", "signatures by nobody, under a key of low order",
         "crypto/test_public_keys.py::"
         "test_the_library_takes_signatures_by_nobody_under_such_a_key_and_we_do_not"),
    ],
    "cohort": [
        ("R21", "n - 1 cohort below the minimum",
         "security/test_cohort.py::test_r21_all_but_one_of_the_minimum_is_too_few_and_a_refused_one_does_not_count"),
        ("R21", "one device as many",
         "security/test_cohort.py::test_one_device_is_never_more_than_one_of_the_minimum"),
        ("N2", "a cohort of the attacker's own devices",
         "security/test_cohort.py::"
         "test_n2_a_server_whose_own_devices_fill_the_cohort_still_sees_its_victim_under_the_charged_noise"),
    ],
    "charges": [
        ("R200", "a charge for another adjacency",
         "trusted_aggregator/enclave/test_adjacency.py::"
         "test_a_charge_for_another_adjacency_is_refused_before_anything_is_drawn"),
        ("R200", "a user who is absent, share of the noise included",
         "privacy/test_adjacency.py::"
         "test_without_the_user_their_share_is_missing_and_the_charge_is_too_small"),
        ("R201", "noise over the root of two on a plain release",
         "trusted_aggregator/modes/enclave/test_enclave_half.py::"
         "test_noise_over_the_root_of_two_is_for_off_diagonals_of_a_packed_triangle_alone"),
        ("R203", "a user taken out of a charged search",
         "research/simulation/test_neighbours.py::"
         "test_every_number_of_a_charged_search_follows_from_its_charged_releases"),
        ("R203", "noise of a charged search that its seed repeats",
         "research/simulation/test_tuning.py::test_no_seed_repeats_the_noise_of_a_private_search"),
        ("R409", "a user of another kind of id who is added or taken out",
         "datasets/test_one_reader.py::"
         "test_one_user_more_or_less_changes_no_key_no_part_no_seed_and_no_coin_of_another"),
        ("R409", "a user taken out of labelled examples",
         "datasets/test_example_files.py::test_a_user_less_leaves_the_examples_of_others_in_their_parts"),
        ("R409", "a user taken out of a cut in time",
         "datasets/test_time_cut.py::"
         "test_a_date_cuts_everybody_at_once_and_one_user_changes_nobody_elses_parts"),
        ("R409", "a user taken out of a cut in time of labelled examples",
         "datasets/test_time_cut.py::test_examples_are_cut_at_a_date_as_ratings_are"),
        ("R410", "the only user of an item who is taken out of a histogram",
         "algorithms/statistics/test_bins_by_id.py::test_the_only_people_of_an_hour_move_nobody_else"),
        ("R410", "ids that are no bin", "algorithms/statistics/test_bins_by_id.py::"
         "test_ids_that_are_no_bin_are_refused_by_name"),
        ("R434", "labels of bins that are doubled, too few, empty, long or of another form",
         "algorithms/statistics/test_bin_labels.py::"
         "test_r434_every_party_refuses_a_definition_with_labels_that_name_no_bins"),
        ("R434", "ids that no label names", "algorithms/statistics/test_bin_labels.py::"
         "test_an_id_without_a_label_is_refused_by_name"),
        ("R417", "a user added to a labelled table, in every form",
         "datasets/test_labelled_tables.py::test_one_user_more_moves_no_example_no_part_and_no_seed_of_another"),
        ("R418", "a category and a class that one person has, in a task that is proposed from the data",
         "cli/test_labelled_check.py::test_what_few_people_have_is_in_no_proposed_task"),
        ("R418", "an extreme of one person in the range of a proposed task",
         "cli/test_labelled_check.py::test_a_proposed_range_follows_from_no_extreme_of_one_person"),
        ("R419", "rows that a task cannot use, before it is submitted",
         "cli/test_labelled_check.py::test_usable_rows_are_counted_before_a_task_is_submitted"),
        ("R411", "values that were replaced by a guess", "algorithms/statistics/test_values_as_written.py::"
         "test_values_that_were_read_as_seen_are_refused"),
        ("R414", "a file of titles with one item more, in another order or of other items",
         "cli/test_index.py::test_titles_name_the_items_of_a_device_by_key_and_never_by_row"),
        ("R414", "data in another order than the catalogue of a task",
         "datasets/test_item_titles.py::"
         "test_a_simulation_brings_data_in_any_order_to_the_numbers_of_its_catalogue"),
        ("R415", "ratings of items that no catalogue has",
         "device_runtime/test_sdk.py::"
         "test_an_item_that_the_catalogue_does_not_have_is_an_error_where_the_app_hands_it_in"),
        ("R415", "devices filled from items without ids in a task that knows keys",
         "device_runtime/host/test_filled_items.py::"
         "test_devices_of_items_without_ids_decline_a_task_that_names_a_catalogue"),
        ("R435", "a file whose places are other items in the next catalogue",
         "device_runtime/store/test_keyed_ratings.py::"
         "test_one_filling_serves_tasks_with_a_catalogue_and_without"),
        ("R416", "predictions beyond the scale",
         "device_runtime/inference/test_recommend.py::"
         "test_predictions_beyond_the_scale_rank_items_and_are_shown_within_it"),
        ("R412", "a guess and rows left out that a command does not name", "cli/test_reading_notes.py::"
         "test_every_command_says_what_it_guessed_and_left_out"),
        ("R413", "names of categories that are digits", "models/test_categories_of_digits.py::"
         "test_a_device_trains_on_the_categories_that_a_simulation_has"),
        ("R204", "a user taken out of a split, a comparison, an evaluation",
         "research/simulation/test_neighbours.py::"
         "test_a_simulated_model_and_its_epsilon_follow_from_the_charged_releases"),
    ],
    "local reports": [
        ("R310", "the worst event of every randomizer",
         "privacy/test_local_audit.py::test_the_worst_event_has_the_stated_epsilon_and_no_more"),
        ("R310", "telling a device without data from the others",
         "algorithms/private_fl/test_private_fl.py::test_a_device_without_data_sends_what_an_update_of_zeros_would"),
        ("R310", "examples and models that make training fail",
         "algorithms/private_fl/test_private_fl.py::"
         "test_whatever_a_device_holds_it_sends_a_random_report_within_the_bound"),
        ("R311", "an enclave that refuses a report to get another one",
         "device_runtime/person/test_local_reports.py::"
         "test_a_second_report_is_declined_whatever_became_of_the_first"),
        ("R311", "many tasks that ask the same person",
         "device_runtime/person/test_local_reports.py::test_the_persons_limit_is_over_all_tasks_and_names_its_number"),
        ("R311", "shuffled reports as if their enclave could not fail",
         "device_runtime/person/test_local_reports.py::test_a_shuffled_report_counts_at_its_own_epsilon_and_once"),
        ("R312", "a report above the bound",
         "algorithms/private_fl/test_private_fl.py::test_the_enclave_refuses_a_report_that_is_longer_than_the_bound"),
        ("R313", "a report that is none",
         "algorithms/local_statistics/test_reports.py::test_what_is_no_report_is_refused"),
        ("R313", "who sent which report",
         "e2e/test_shuffled_statistics.py::test_devices_send_reports_that_the_enclave_only_counts"),
        ("R314", "a charge by more reports than the minimum",
         "e2e/test_shuffled_statistics.py::test_a_definition_out_of_its_bounds_is_refused"),
        ("R314", "a person among devices of the server",
         "privacy/test_local_events.py::test_a_device_among_devices_of_the_server_has_its_randomiser_alone"),
    ],
    "side channels": [
        ("R202", "operations and memory of a sampled round",
         "trusted_aggregator/modes/enclave/test_sampling.py::"
         "test_a_round_does_the_same_to_the_same_places_whoever_is_drawn"),
        ("R4", "length of contributions",
         "security/test_side_channels.py::test_r4_the_contributions_of_a_round_have_one_length"),
        ("R4", "sizes on the wire",
         "device_runtime/round/test_participation.py::test_devices_with_no_one_and_five_hundred_items_look_alike_from_outside"),
        ("R41", "memory accesses of the sums",
         "algorithms/dpam/test_oblivious.py::"
         "test_one_hot_item_unused_places_and_all_different_items_leave_one_trace"),
        ("R41", "memory accesses of dense sums and checks",
         "algorithms/dense/test_dense_query.py::"
         "test_checking_and_summing_leave_one_trace_whatever_the_numbers_are"),
        ("R41", "memory accesses of the checks",
         "security/test_side_channels.py::test_r41_checking_any_two_accepted_contributions_touches_the_same_places"),
        ("R44", "counts of refusals", "security/test_uploads.py::test_r44_nothing_that_leaves_counts_refusals"),
        ("R81", "memory accesses of selections", "distributor/test_scan.py::test_all_keys_leave_one_trace"),
        ("R23", "length of selections",
         "distributor/test_enclave.py::test_requests_and_replies_have_one_length_whatever_the_keys"),
    ],
    "what a transcript tells": [
        ("R180", "a singular solve as an oracle",
         "security/test_transcripts.py::"
         "test_r180_a_model_that_is_singular_without_one_item_does_not_tell_who_rated_it"),
        ("R180", "hostile rows and data", "security/test_transcripts.py::"
         "test_devices_with_any_data_look_alike_to_a_hostile_server"),
        ("R180", "hostile ridges and parameters", "security/test_transcripts.py::"
         "test_devices_refuse_a_hostile_model_alike_or_all_take_part"),
        ("R180", "silence in a session of secure aggregation",
         "device_runtime/round/test_secagg.py::"
         "test_a_device_that_cannot_compute_sends_the_empty_contribution_into_its_session"),
        ("R181", "a search over ranges", "security/test_transcripts.py::"
         "test_r181_a_range_of_values_does_not_tell_a_rating"),
        ("R182", "isolated code that fails on a bit", "security/test_transcripts.py::"
         "test_r182_a_developers_own_code_tells_no_bit_by_how_it_ends"),
        ("R182", "isolated code that is slow on a bit", "security/test_transcripts.py::"
         "test_r182_a_developers_own_code_tells_no_bit_by_how_long_it_runs"),
        ("R183", "a deadline that depends on the data", "security/test_transcripts.py::"
         "test_r183_a_computation_that_does_not_end_ends_in_an_upload_like_any_other"),
        ("R345", "a computation that ends, fails or hangs on a bit",
         "device_runtime/round/test_fixed_times.py::"
         "test_r345_a_contribution_leaves_at_its_time_whatever_its_computation_did"),
        ("R345", "reading that takes longer where rows match",
         "device_runtime/round/test_fixed_times.py::"
         "test_r345_keys_leave_at_their_time_and_a_device_that_could_not_read_asks_for_none"),
        ("R345", "a reader's lock that holds up the upload", "device_runtime/round/test_fixed_times.py::"
         "test_r345_a_reader_is_gone_before_the_contribution_is_stored"),
        ("R345", "long texts that hold up the device", "device_runtime/store/test_labelled_examples.py::"
         "test_r345_no_more_of_an_example_is_read_than_the_tasks_own_numbers_say"),
        ("R346", "one device's data in the times of another",
         "device_runtime/round/test_fixed_times.py::"
         "test_r346_what_one_device_holds_moves_no_begin_of_another"),
        ("R347", "a computation that cannot be stopped",
         "device_runtime/round/test_fixed_times.py::"
         "test_r347_a_process_that_does_not_end_is_killed_at_its_time"),
        ("R347", "memory that ends the device in silence",
         "device_runtime/round/test_fixed_times.py::"
         "test_r347_a_process_has_a_limit_of_memory_and_its_device_sends_the_empty_contribution"),
        ("R348", "a task that slow devices answer by empty contributions for ever",
         "device_runtime/round/test_fixed_times.py::"
         "test_r348_a_device_that_cannot_compute_a_task_declines_it_before_it_reads_data"),
        ("R349", "rows of own code that take long to store", "device_runtime/round/test_made_examples.py::"
         "test_r349_rows_that_are_stored_too_late_are_rolled_back_and_time_is_kept"),
        ("R184", "load, heat and time of a computation as a condition",
         "device_runtime/round/test_gate.py::test_conditions_that_computing_moves_do_not_hold_up_what_was_begun"),
        ("R185", "lookups that are skipped or repeated on a bit", "security/test_transcripts.py::"
         "test_r185_candidates_are_asked_for_alike_whatever_the_data_and_the_tables_are"),
        ("R350", "tasks that are slow on a bit", "security/test_hostile_tasks.py::"
         "test_r350_a_hostile_task_tells_nothing_of_the_data_by_time"),
        ("R350", "tasks of every kind, and as much data as a store allows", "security/test_hostile_tasks.py::"
         "test_r350_no_kind_of_hostile_task_tells_the_data_that_take_longest"),
        ("R351", "a slow device that moves the others of its host", "security/test_hostile_tasks.py::"
         "test_r351_the_data_of_one_device_do_not_move_the_calls_of_the_others_of_its_host"),
        ("R352", "a busy machine that makes devices look different", "security/test_transcript_comparison.py::"
         "test_r352_on_a_busy_machine_devices_that_are_alike_are_not_told_apart"),
        ("R340", "more stored rows than a task may read, encoded all the same",
         "algorithms/test_computing_time.py::test_rows_of_examples_are_capped_before_they_are_encoded"),
        ("R341", "1,000 epochs over rows of one category", "algorithms/test_computing_time.py::"
         "test_a_device_refuses_a_task_of_too_much_work_that_its_developer_signed_all_the_same"),
        ("R341", "a definition of few bytes and much work",
         "algorithms/test_computing_time.py::test_a_definition_of_few_bytes_and_a_million_parameters_is_refused"),
        ("R341", "a device that is killed for its memory", "algorithms/test_computing_time.py::"
         "test_reports_of_local_trust_that_would_fill_the_memory_are_refused"),
        ("R342", "a slow device as an oracle, or one that is charged for ever",
         "algorithms/test_computing_time.py::test_a_device_that_is_too_slow_says_so_by_public_facts_alone"),
        ("R430", "rows that a reader leaves out before anybody counts them",
         "algorithms/usable_count/test_usable_count.py::"
         "test_r430_a_device_counts_the_rows_that_its_reader_leaves_out"),
        ("R431", "a vote of more than one device's weight",
         "algorithms/usable_count/test_usable_count.py::test_r431_the_enclave_refuses_more_than_one_vote"),
        ("R431", "a vote for a place that there is not",
         "algorithms/usable_count/test_usable_count.py::test_r431_the_enclave_refuses_a_vote_for_another_place"),
        ("R432", "a training that names a count of other rows",
         "server/test_counting.py::test_r432_a_training_names_a_count_of_its_own_rows"),
        ("R437", "a count that is charged for a training that was refused",
         "server/test_counting.py::test_r437_a_count_whose_training_was_refused_opens_no_round"),
        ("R433", "a vote whose calls, sizes or times say whether rows are usable", "security/test_transcripts.py::"
         "test_r433_a_vote_is_cast_alike_whether_rows_are_usable_or_not"),
        ("R422", "an app that times `learn` on devices with few and many rows", "security/test_learning_app.py::"
         "test_r422_learn_tells_an_app_nothing_of_how_many_rows_there_are"),
        ("R422", "rows past their period, and how long it takes to forget them", "device_runtime/host/test_pacing.py::"
         "test_r422_forgetting_rows_moves_neither_the_next_call_nor_the_end_of_a_host"),
        ("R387", "a network that takes all of its time on one person's rows", "device_runtime/round/test_coupling.py::"
         "test_r387_a_training_that_takes_all_of_its_time_empties_no_contribution_of_the_others_of_its_host"),
        ("R387", "many devices of a host at their worst case", "device_runtime/round/test_coupling.py::"
         "test_r387_computations_in_place_end_in_time_where_all_devices_are_at_their_worst_case"),
        ("R388", "processes that fill the memory of a host together", "device_runtime/round/test_coupling.py::"
         "test_r388_a_device_holds_its_place_from_its_keys_to_the_end_of_its_contribution"),
        ("R455", "a task that slows another one on the same host", "device_runtime/round/test_coupling.py::"
         "test_r455_computations_of_several_tasks_use_no_more_processors_than_the_machine_has"),
        ("R456", "tasks whose processes take the place of those that compute", "device_runtime/round/test_coupling.py::"
         "test_r456_tasks_that_come_meanwhile_end_no_process_of_a_device_that_computes"),
        ("R457", "a second network, whose processes start when a device has rows for it",
         "device_runtime/round/test_network_time.py::"
         "test_r457_what_trains_is_ready_before_the_time_of_a_training_whatever_the_device_holds"),
        ("R458", "an app that asks for predictions to learn of its person", "models/litert/test_litert_local.py::"
         "test_r458_an_app_is_told_no_prediction_that_depends_on_the_person"),
        ("R458", "an app that listens whether a prediction for the person failed", "e2e/test_predictions.py::"
         "test_r458_what_fails_for_the_person_is_told_on_their_page_alone"),
        ("R458", "a model of another kind than was asked for", "device_runtime/inference/test_predict.py::"
         "test_r458_a_server_that_offers_a_model_of_items_instead_is_refused_by_name"),
        ("R389", "a network that fails on some people's rows until it is paused for all",
         "models/litert/test_litert_walls.py::"
         "test_r389_a_program_that_failed_for_many_people_in_a_row_is_run_for_the_next_one_all_the_same"),
        ("R389", "a host that has no process left", "device_runtime/round/test_coupling.py::"
         "test_r389_a_fork_that_fails_ends_no_process_of_the_other_devices"),
        ("R352", "a busy machine that hides a shift", "security/test_transcript_comparison.py::"
         "test_r352_noise_of_a_machine_hides_no_shift_that_is_larger"),
    ],
    "addresses": [
        ("R187", "connections to a listener of the server's choice", "security/test_addresses.py::"
         "test_r187_a_server_cannot_choose_where_a_device_connects"),
        ("R187", "DNS rebinding",
         "device_runtime/network/test_addresses.py::test_a_name_is_resolved_once_and_the_channel_gets_its_addresses"),
        ("R187", "names that lead into the device's own network",
         "device_runtime/network/test_addresses.py::"
         "test_a_name_that_leads_to_an_address_that_is_not_public_needs_the_persons_word"),
    ],
    "populations": [
        ("R160", "an invented cohort spends the budget",
         "security/test_populations.py::test_r160_a_stranger_with_a_hundred_devices_spends_nothing_of_a_population"),
        ("R160", "orders at the port of devices",
         "security/test_populations.py::test_r160_at_the_port_of_devices_nobody_orders_anything"),
        ("R160", "orders without a certificate, and of no owner",
         "security/test_populations.py::"
         "test_r160_at_the_control_port_a_server_alone_is_heard_and_an_owner_alone_obeyed"),
        ("R161", "forged founding", "security/test_populations.py::test_r161_no_founding_but_a_founders_counts"),
        ("R161", "a second server of the same name",
         "security/test_populations.py::"
         "test_r161_a_second_server_with_the_same_name_is_refused_by_name_and_changes_nothing"),
        ("R162", "a retired owner",
         "security/test_populations.py::"
         "test_r162_a_retired_owner_spends_nothing_more_and_what_was_collected_is_gone"),
        ("R162", "a charter rolled back",
         "security/test_populations.py::test_r162_no_start_from_older_files_brings_a_retired_owner_back"),
        ("R162", "an old charter, or another population's",
         "security/test_populations.py::test_r162_a_charter_of_another_population_or_an_old_one_changes_nothing"),
        ("R163", "a device that is shown a task of no owner, or evidence with another charter",
         "device_runtime/tasks/test_charters.py::test_r163_a_device_takes_no_task_but_of_owners_whom_the_evidence_shows"),
        ("R164", "a log that leaves out or forges a charter",
         "trust/log/test_audit.py::test_every_lie_is_named_although_every_signature_of_the_log_holds"),
        ("R166", "two sums under one charge",
         "security/test_one_release.py::test_r166_no_second_sum_is_signed_under_one_charge"),
    ],
    "cancelling": [
        ("R167", "going on after the end, at every stage",
         "security/test_cancelling.py::"
         "test_r167_after_the_end_nothing_is_accepted_or_released_at_whatever_stage_it_came"),
        ("R167", "a close that comes after the end",
         "security/test_cancelling.py::test_r167_a_close_that_comes_after_the_end_releases_nothing"),
        ("R167", "ending somebody else's task",
         "security/test_cancelling.py::test_r167_an_end_needs_an_owners_signature_over_this_task"),
        ("R167", "using up the memory of ends",
         "security/test_cancelling.py::test_r167_every_task_that_is_held_can_be_ended_however_many_were_before"),
        ("R168", "having a distributor forget somebody else's models",
         "distributor/test_retention.py::test_nobody_but_its_developer_ends_a_task"),
    ],
    "floods": [
        ("R169", "a population that opens all it can",
         "security/test_quotas.py::test_r169_a_population_that_is_full_is_told_which_limit_and_others_go_on"),
        ("R169", "filling the event log",
         "security/test_quotas.py::test_r169_populations_and_changes_of_charters_are_bounded"),
        ("R170", "a developer that fills a distributor",
         "distributor/test_quotas.py::test_r170_a_developer_fills_its_own_share_and_others_publish_on"),
        ("R171", "rounds that stay open for ever",
         "security/test_quotas.py::"
         "test_r171_a_round_that_nobody_asks_about_is_erased_uncharged_and_can_be_opened_anew"),
        ("R173", "a start that takes long",
         "security/test_quotas.py::test_r173_a_start_after_the_worst_load_that_is_allowed_takes_at_most_ten_seconds"),
    ],
    "keys of rounds": [
        ("R174", "all long-lived keys and files, once the round is over",
         "security/test_round_keys.py::"
         "test_r174_all_long_lived_keys_and_all_files_open_nothing_of_a_round_that_is_over"),
        ("R175", "a key of the host's, or of another round",
         "device_runtime/round/test_participation.py::"
         "test_a_key_that_the_enclave_did_not_sign_for_this_round_means_that_nothing_is_sent"),
        ("R175", "a second opening of the round, to have a device seal twice",
         "device_runtime/round/test_participation.py::"
         "test_a_device_seals_once_for_a_round_and_gives_it_up_where_it_comes_back_with_another_key"),
        ("R176", "a platform that does not erase",
         "security/test_round_keys.py::test_r176_a_release_whose_key_cannot_be_erased_does_not_leave"),
        ("R176", "a kill around the erasing",
         "security/test_round_keys.py::"
         "test_r176_a_death_around_the_erasing_of_a_released_round_leaves_one_release_and_no_key"),
        ("R179", "noise of a laxer policy",
         "security/test_round_keys.py::test_r179_a_round_that_another_policy_opened_is_lost_with_its_noise"),
        ("R178", "the distributor's key, in a later launch",
         "distributor/test_program.py::"
         "test_a_restart_keeps_the_models_and_opens_no_request_of_the_launch_before"),
    ],
    "refusals": [
        ("R177", "a counted contribution that is called refused",
         "device_runtime/round/test_participation.py::"
         "test_a_device_whose_counted_contribution_is_called_refused_charges_itself"),
        ("R177", "signatures of another device, round, reason, key or enclave",
         "device_runtime/round/test_participation.py::test_a_signature_of_something_else_does_not_refuse"),
        ("R177", "a refusal first, and the contribution after a restart from before the charge",
         "security/test_signed_refusals.py::test_r177_a_refusal_before_the_charge_is_in_force_says_nothing"),
        ("R177", "a refusal by an enclave without the round, or with another opening of it",
         "security/test_signed_refusals.py::test_r177_an_enclave_without_the_round_disowns_nothing_of_it"),
        ("R177", "a refusal of another masked vector",
         "security/test_signed_refusals.py::"
         "test_r177_a_masked_contribution_with_another_vector_is_not_disowned_with_its_own"),
    ],
    "disks": [
        ("R240", "a power cut after any step of a round of any program",
         "faults/test_faults.py::test_what_was_acknowledged_survives_a_power_cut_after_every_step"),
        ("R240", "a disk that fills up within any write",
         "faults/test_faults.py::test_a_full_disk_loses_nothing_that_was_acknowledged"),
        ("R241", "a reader that keeps what was erased",
         "security/test_durability.py::test_r241_erased_contributions_do_not_stay_in_the_log_behind_a_reader"),
        ("R241", "a reader while a task is ended", "security/test_durability.py::"
         "test_r241_the_end_of_a_task_is_not_answered_while_a_reader_keeps_what_was_erased"),
        ("R241", "a reader while a round is released", "security/test_durability.py::"
         "test_r241_a_release_does_not_wait_for_a_reader_and_the_log_is_emptied_later"),
        ("R242", "a sync that fails once, whichever it is",
         "faults/test_faults.py::test_after_a_failed_sync_nothing_is_acknowledged_and_the_next_start_goes_on"),
        ("R243", "a lost key or database",
         "security/test_lost_files.py::test_r243_a_program_whose_key_or_state_is_lost_does_not_start_anew"),
        ("R243", "a witness that lost its last checkpoint",
         "security/test_lost_files.py::test_r243_a_witness_without_its_last_checkpoint_cosigns_nothing"),
        ("R243", "a device that lost what it saw of a log",
         "security/test_lost_files.py::test_r243_a_device_that_lost_what_it_saw_of_a_log_believes_no_other_one"),
        ("R243", "a log that was started anew under a server",
         "security/test_lost_files.py::test_r243_a_log_that_is_older_than_the_servers_database_is_not_served"),
        ("R286", "a lost or empty database",
         "security/test_lost_files.py::test_r286_a_program_whose_database_is_lost_does_not_start_anew"),
        ("R286", "a device that lost what it knows of its populations", "device_runtime/tasks/test_charters.py::"
         "test_r286_a_device_that_lost_what_it_knows_of_its_populations_trusts_no_first_answer_again"),
        ("R287", "a disk that is full when a hand-over is logged",
         "server/test_transparency.py::test_r287_what_could_not_be_logged_is_logged_whole_at_the_next_try"),
        ("R285", "a distributor that lost a model of an open round",
         "server/test_driver.py::test_r285_a_distributor_that_lost_a_model_gets_it_again_while_the_server_runs"),
        ("R244", "a log without its checkpoint",
         "trust/log/test_repair.py::test_a_log_without_its_checkpoint_is_refused_and_not_started_anew"),
        ("R244", "a repair from an older copy",
         "trust/log/test_repair.py::test_a_log_is_never_made_shorter_than_what_is_known_to_be_signed"),
        ("R244", "a repair from another log's checkpoint, or a forged one",
         "trust/log/test_repair.py::test_a_checkpoint_of_another_log_or_key_restores_nothing"),
    ],
    "listeners": [
        ("R150", "no certificate",
         "transport/test_callers.py::test_without_a_certificate_no_call_reaches_the_listener"),
        ("R150", "another CA's certificate",
         "transport/test_callers.py::test_a_certificate_of_another_ca_is_refused_whatever_it_names"),
        ("R150", "another program's certificate",
         "transport/test_callers.py::"
         "test_a_certificate_under_the_right_ca_with_another_name_is_unauthenticated_with_one_line"),
        ("R150", "a DNS name that looks like a role",
         "transport/test_callers.py::test_a_name_that_is_no_uri_counts_for_nothing"),
        ("R151", "silent calls on many connections",
         "security/test_silent_callers.py::test_silent_calls_on_64_connections_stop_no_honest_caller"),
        ("R152", "3,000 calls that wait",
         "security/test_silent_callers.py::"
         "test_calls_that_wait_take_bounded_memory_and_hear_when_to_come_back"),
        ("R153", "connections without TLS",
         "security/test_silent_callers.py::"
         "test_connections_without_a_handshake_are_closed_and_meanwhile_others_are_served"),
        ("R153", "one byte at a time",
         "security/test_silent_callers.py::"
         "test_a_request_that_comes_byte_by_byte_is_cut_off_and_meanwhile_others_are_served"),
        ("R153", "streams that stall",
         "transport/test_front.py::test_a_stream_that_stalls_in_the_middle_gives_its_thread_back"),
        ("R153", "replies that nobody reads",
         "transport/test_front.py::test_replies_that_nobody_reads_hold_no_thread_and_end_in_time"),
        ("R154", "silent Publish streams",
         "distributor/test_servicer.py::test_two_publishers_that_say_nothing_keep_no_place"),
        ("R154", "Publish streams that stall after their header",
         "distributor/test_servicer.py::test_two_publishers_that_stall_after_their_header_lose_their_places"),
        ("R155", "paths and echoes in errors",
         "security/test_anonymous_errors.py::"
         "test_no_method_of_a_program_tells_a_stranger_a_path_or_its_own_bytes"),
        ("R156", "reflection",
         "security/test_anonymous_errors.py::"
         "test_no_program_lists_its_methods_unless_its_operator_says_so"),
    ],
    "enrolment": [
        ("R230", "one device, a hundred contributions",
         "security/test_sybils.py::test_r230_one_device_that_makes_up_a_hundred_contributions_gets_one_token"),
        ("R230", "a hundred contributions of one device at the enclave", "security/test_admission.py::"
         "test_r230_of_a_hundred_contributions_of_one_device_the_enclave_counts_one"),
        ("R230", "no token, a forged one", "security/test_admission.py::"
         "test_r230_a_contribution_without_a_token_is_not_counted_whatever_stands_in_its_place"),
        ("R230", "no token in a masked round",
         "security/test_admission.py::test_r230_masked_rounds_ask_for_tokens_too"),
        ("R231", "tokens of another round, task, issuer at the enclave",
         "security/test_admission.py::test_r231_tokens_of_another_round_task_or_issuer_are_not_counted"),
        ("R232", "a token that was counted, again and under another id", "security/test_admission.py::"
         "test_r232_a_token_that_was_counted_counts_for_no_other_id_and_not_again"),
        ("R236", "a second key for an open round, also after a restart", "security/test_admission.py::"
         "test_r236_a_round_takes_one_key_and_no_other_one_after_a_restart_either"),
        ("R236", "a round opened with a forged key, none, or another round's", "security/test_admission.py::"
         "test_r236_a_round_opens_with_the_key_of_its_own_issuer_round_and_task_alone"),
        ("R236", "a key where the charter names no issuer",
         "security/test_admission.py::test_r236_a_population_without_an_issuer_takes_no_key"),
        ("R238", "joining a session of SecAgg+ without a token, or with another identity's",
         "trusted_aggregator/modes/secagg/test_rounds.py::test_a_client_joins_with_a_token_over_its_identity_alone_in_every_attempt"),
        ("R239", "calls to the issuer that depend on data",
         "security/test_transcripts.py::test_r239_devices_ask_for_tokens_alike_whatever_their_data_are"),
        ("R239", "a token key of another issuer or round, for a device",
         "device_runtime/round/test_admission.py::test_a_key_that_is_not_the_rounds_own_is_not_used"),
        ("R239", "an address of the server's choice as the issuer",
         "device_runtime/round/test_admission.py::test_an_issuer_that_is_not_pinned_is_not_asked"),
        ("R230", "no attestation", "security/test_sybils.py::test_r230_a_stranger_without_an_attestation_gets_none"),
        ("R231", "tokens of another round, task, population, issuer",
         "security/test_sybils.py::test_r231_tokens_of_another_round_task_population_or_issuer_admit_nothing"),
        ("R231", "keys of another round, task, population, issuer",
         "security/test_sybils.py::"
         "test_r231_a_key_of_another_round_task_population_or_issuer_is_no_key_of_this_round"),
        ("R232", "one token for many ids, products of tokens",
         "security/test_sybils.py::test_r232_a_token_admits_one_id_and_one_identity_however_it_is_replayed"),
        ("R233", "hoarding",
         "security/test_sybils.py::"
         "test_r233_hoarded_statements_challenges_and_tokens_are_worthless_in_the_next_round"),
        ("R233", "replayed statement",
         "security/test_sybils.py::test_r233_a_replayed_statement_gets_no_second_signature"),
        ("R233", "relayed challenge",
         "security/test_sybils.py::test_r233_an_issuer_cannot_use_a_statement_at_another_issuer"),
        ("R233", "expired challenge",
         "trust/enrolment/test_issuer.py::test_a_challenge_is_answered_once_in_time_and_here"),
        ("R234", "emulated statement at an issuer that did not opt in",
         "security/test_sybils.py::"
         "test_r234_a_statement_that_says_emulated_counts_where_the_operator_named_that_vendor_alone"),
        ("R235", "linking tokens to requests",
         "security/test_sybils.py::test_r235_every_request_of_a_round_could_have_led_to_every_token_of_it"),
        ("R236", "two keys for one round",
         "security/test_sybils.py::test_r236_a_second_key_of_a_round_admits_nothing_under_the_first"),
        ("R237", "a stranger's rounds",
         "security/test_sybils.py::test_r237_a_developer_that_is_not_served_gets_no_key_and_costs_no_storage"),
    ],
    "many rounds": [
        ("R250", "ten thousand rounds, to fill log, disk and memory",
         "security/test_many_rounds.py::test_r250_a_later_round_adds_no_more_to_log_and_files_than_an_early_one"),
        ("R250", "entries dropped, changed, reordered; an older or another population's state",
         "security/test_many_rounds.py::test_r250_entries_and_states_that_do_not_lead_to_the_head_end_the_start"),
        ("R250", "different events without end, to slow every charge",
         "security/test_quotas.py::test_r250_different_events_are_bounded_and_repeated_ones_cost_nothing"),
    ],
    "what stands still": [
        ("R260", "a task whose enclave needs on its way what it cannot load any more",
         "e2e/test_every_combination.py::test_a_task_of_every_combination_finishes"),
        ("R260", "a combination that no enclave can run, in a definition made by hand",
         "tasks/test_task_combinations.py::test_a_definition_made_by_hand_is_refused_by_whoever_checks_it"),
        ("R261", "a service that fails the same way for ever",
         "server/test_waits.py::test_an_error_that_nobody_foresaw_ends_the_task_after_ten_tries"),
        ("R262", "a second task in place of the model that people use",
         "server/test_servicer.py::test_a_task_that_is_submitted_and_cancelled_changes_no_recommendation"),
        ("R263", "one device that declines, in every round",
         "server/test_waits.py::test_a_device_that_declines_costs_each_later_round_seconds_and_not_its_whole_time"),
        ("R265", "a budget that the population does not have",
         "trusted_aggregator/enclave/test_checking.py::test_a_task_beyond_the_populations_budget_is_refused_when_it_is_asked"),
        ("R288", "a witness that hangs",
         "server/test_transparency.py::test_r288_a_witness_that_hangs_holds_up_no_task"),
        ("R264", "an enclave that hangs",
         "trust/enclave/test_channel.py::test_an_enclave_that_hangs_is_noticed_though_nobody_waits_with_a_deadline"),
        ("R264", "a service that hangs on one task",
         "server/test_waits.py::test_a_task_whose_service_does_not_answer_holds_up_no_other"),
        ("R290", "more tasks of a population than may have a round open, to end one that has spent budget",
         "security/test_quotas.py::"
         "test_r290_a_population_that_is_full_lets_a_task_wait_that_has_spent_and_does_not_end_it"),
        ("R291", "a script that ends a task and forgot to say which",
         "cli/test_task.py::test_an_empty_id_names_no_task_even_where_there_is_one_alone"),
    ],
    "hand-overs": [
        ("R270", "a successor that nobody, or too few, endorsed",
         "security/test_hand_over.py::test_a_successor_that_too_few_endorsed_gets_nothing"),
        ("R270", "a successor that was withdrawn",
         "security/test_hand_over.py::test_a_successor_whose_endorsement_was_withdrawn_gets_nothing"),
        ("R270", "another log, an old tree, a part of a tree",
         "security/test_hand_over.py::test_a_host_cannot_show_another_log_an_old_one_or_a_part_of_it"),
        ("R270", "a laxer policy, another chip",
         "security/test_hand_over.py::test_a_successor_under_another_policy_or_on_another_chip_gets_nothing"),
        ("R270", "replayed evidence",
         "security/test_hand_over.py::test_evidence_over_another_nonce_gets_nothing"),
        ("R271", "charging in the old enclave, in a copy of it, from old files",
         "security/test_hand_over.py::"
         "test_the_old_enclave_charges_nothing_afterwards_and_neither_does_a_copy_of_it"),
        ("R271", "the key before the name is in force",
         "security/test_hand_over.py::test_the_key_is_not_given_before_the_successor_is_named_in_force"),
        ("R271", "a second successor, a replayed package",
         "security/test_hand_over.py::test_a_second_successor_is_refused_though_it_is_endorsed"),
        ("R282", "a successor that was replaced, with the key that it got before",
         "security/test_hand_over.py::"
         "test_r282_a_successor_that_has_the_key_gets_nothing_once_another_is_named"),
        ("R271", "two processes of the successor",
         "security/test_hand_over.py::test_of_two_processes_of_the_successor_one_goes_on"),
        ("R370", "death at each step, in the middle of rounds of every mode", "security/test_upgrades_under_way.py::"
         "test_r370_a_death_at_any_step_of_an_upgrade_in_the_middle_of_a_round_loses_nothing_in_silence"),
        ("R443", "a round of before an upgrade that a server offers again and again",
         "device_runtime/host/test_pacing.py::test_r443_a_server_that_offers_a_round_of_before_an_upgrade_ends_no_host"),
        ("R370", "a round that the old server still offers", "security/test_upgrades_under_way.py::"
         "test_r370_the_old_enclave_signs_no_refusal_before_the_end_of_the_round_is_in_force"),
        ("R371", "a void opening that no enclave signed", "device_runtime/round/test_void_openings.py::"
         "test_r371_a_server_that_claims_a_void_opening_gets_no_second_contribution"),
        ("R371", "a charge for a round that never had a release", "device_runtime/round/test_void_openings.py::"
         "test_r371_what_counted_in_a_void_opening_costs_nothing_and_the_device_contributes_to_the_next"),
        ("R371", "a second randomisation for one charge", "device_runtime/round/test_void_openings.py::"
         "test_r371_a_report_that_is_private_by_itself_is_sent_again_as_it_is_and_paid_once"),
        ("R371", "the end of a round that is charged",
         "security/test_upgrades_under_way.py::test_r371_a_round_that_is_charged_is_never_void"),
        ("R398", "a void round that others filled meanwhile", "device_runtime/round/test_void_openings.py::"
         "test_r398_a_device_that_was_away_while_others_filled_the_round_takes_its_charge_back_with_the_next_one"),
        ("R398", "a void round that is forgotten with its charge", "security/test_void_openings.py::"
         "test_r398_what_is_void_stays_signed_once_others_filled_the_round_and_its_task_ended"),
        ("R398", "a death at either write", "device_runtime/round/test_void_openings.py::"
         "test_r398_a_device_that_dies_before_it_stores_what_it_takes_back_does_so_at_the_next_start"),
        ("R399", "upgrades, copies and old state until a charged key is void", "security/test_void_openings.py::"
         "test_r399_no_enclave_signs_a_key_to_be_void_under_which_something_was_charged"),
        ("R399", "a true statement about another opening", "device_runtime/round/test_void_openings.py::"
         "test_r399_a_server_makes_no_contribution_free_that_counted"),
        ("R399", "a session that is called back", "device_runtime/round/test_void_openings.py::"
         "test_r399_nothing_calls_a_contribution_to_a_session_back"),
        ("R372", "contributions at the leaves of a tree", "trusted_aggregator/host/test_upgrading_trees.py::"
         "test_r372_contributions_at_the_leaves_are_waited_for_and_leaves_know_the_new_root"),
        ("R373", "a stream that ends in silence", "security/test_upgrades_under_way.py::"
         "test_r373_a_stream_goes_on_where_it_was_and_admits_nobody_sooner"),
        ("R374", "vectors of a session under way", "trusted_aggregator/host/test_upgrading_under_way.py::"
         "test_r374_a_session_under_way_is_named_and_waited_for_whatever_the_operator_says"),
        ("R374", "a second order of devices under one number", "trusted_aggregator/modes/secagg/test_hand_over.py::"
         "test_r374_the_next_session_has_a_number_that_its_devices_did_not_take_part_in"),
        ("R375", "a copy of the old enclave that holds a void round", "security/test_upgrades_under_way.py::"
         "test_r375_no_copy_of_the_old_enclave_charges_a_round_that_is_void"),
        ("R375", "records of a void round that come back", "security/test_upgrades_under_way.py::"
         "test_r375_a_host_that_brings_a_void_round_back_finds_it_closed"),
        ("R392", "a failed counter while a second successor is named", "security/test_upgrades_under_way.py::"
         "test_r392_a_stream_survives_a_failed_counter_at_a_second_successor"),
        ("R392", "past sums at an old enclave that died at the take-over", "security/test_upgrades_under_way.py::"
         "test_r392_an_old_enclave_that_died_at_the_take_over_erases_its_streams_at_its_next_start"),
        ("R392", "keys of void rounds that outlive the hand-over", "security/test_upgrades_under_way.py::"
         "test_r392_no_package_leaves_while_the_keys_of_void_rounds_cannot_be_erased"),
        ("R394", "records that do not go along", "trusted_aggregator/host/test_upgrading.py::"
         "test_r394_a_successor_reads_no_record_that_does_not_go_along"),
        ("R376", "a server that runs on while its aggregator is upgraded", "server/test_program.py::"
         "test_r376_a_server_takes_reference_values_that_change_without_a_restart"),
        ("R376", "a second server, which does not lead the log, while its aggregator is upgraded", "server/"
         "test_transparency.py::test_r376_a_server_that_does_not_lead_the_log_proves_new_endorsements_too"),
        ("R376", "code that is pinned no more", "device_runtime/network/test_pinned_values.py::"
         "test_r376_code_that_is_pinned_no_more_is_refused_at_once"),
        ("R272", "death at each step", "security/test_hand_over.py::"
         "test_a_death_of_all_programs_at_any_step_loses_and_doubles_nothing"),
        ("R272", "death between two counters", "security/test_hand_over.py::"
         "test_a_death_between_two_moves_of_the_counters_loses_and_doubles_nothing"),
        ("R273", "a forged ledger",
         "security/test_hand_over.py::test_a_package_of_a_stranger_or_a_changed_one_is_not_taken"),
        ("R274", "contributions for other code",
         "security/test_hand_over.py::test_no_key_to_contributions_goes_to_the_successor"),
        ("R275", "the same population again, at zero", "device_runtime/tasks/test_charters.py::"
         "test_r275_a_population_that_started_again_at_zero_gets_nothing_from_whoever_contributed_before"),
        ("R276", "a log that hides a hand-over, or invents one",
         "trust/log/test_hand_overs.py::test_every_lie_about_a_hand_over_is_named"),
        ("R280", "charges by code that handed a population back",
         "trust/log/test_hand_overs.py::"
         "test_r280_what_was_handed_back_is_no_longer_the_next_codes_to_charge_or_to_hand_over"),
    ],
    "backups": [
        ("R277", "an older ledger, or none",
         "security/test_backups.py::test_r277_after_a_lost_disk_the_newest_backup_goes_on_and_no_other_state_does"),
        ("R277", "the chip's counters in a backup",
         "_system/files/test_backup.py::test_no_byte_of_a_chip_is_in_a_backup"),
        ("R277", "changed bytes", "_system/files/test_backup.py::"
         "test_a_changed_byte_is_found_and_nothing_is_put_in_place"),
        ("R277", "files elsewhere", "_system/files/test_backup.py::"
         "test_an_archive_that_would_write_elsewhere_is_refused"),
    ],
    "certificates": [
        ("R251", "a certificate that expires while programs run",
         "security/test_certificates.py::"
         "test_r251_a_listener_shows_the_certificate_that_its_files_have_without_a_restart"),
        ("R251", "the same, of a caller",
         "security/test_certificates.py::test_r251_a_caller_shows_its_newest_certificate_on_a_channel_that_it_has"),
        ("R251", "a start with an expired certificate, or under an expired CA",
         "security/test_certificates.py::test_r251_a_certificate_that_has_expired_ends_the_start_with_one_line"),
        ("R251", "an endorsement that expires while the server runs",
         "server/test_transparency.py::"
         "test_r251_new_endorsements_are_taken_up_without_a_restart_and_warned_of_before_they_end"),
    ],
    "hostile connections": [
        ("R359", "endless header blocks, pings, unknown frames and resets on 48 connections, or from 100 addresses",
         "security/test_hostile_connections.py::"
         "test_r359_bytes_that_no_call_explains_cost_little_memory_and_delay_nobody"),
        ("R359", "one header block without an end",
         "security/test_hostile_connections.py::test_r359_an_endless_header_block_is_reset_before_it_costs_much"),
        ("R405", "headers that refer to earlier ones, before the limits of the listener are acknowledged",
         "security/test_hostile_connections.py::"
         "test_r405_headers_that_refer_to_earlier_ones_take_bounded_memory_which_comes_back"),
        ("R405", "limits that are never acknowledged", "security/test_hostile_connections.py::"
         "test_r405_a_caller_that_never_acknowledges_the_limits_is_ended"),
        ("R436", "a program that stood still while honest bytes arrived", "transport/test_connections.py::"
         "test_r436_a_program_that_stood_still_has_time_to_begin_what_arrived_meanwhile"),
        ("R360", "honest uploads at the limits",
         "security/test_hostile_connections.py::test_r360_uploads_that_calls_explain_are_never_ended"),
        ("R361", "connections that never ask anything",
         "security/test_hostile_connections.py::test_r361_connections_that_never_ask_anything_keep_nobody_out"),
        ("R390", "silent connections from each address of one IPv6 network",
         "transport/test_connections.py::test_r390_connections_of_one_ipv6_network_keep_no_newcomer_out"),
        ("R390", "bytes without a call from each address of one IPv6 network",
         "transport/test_connections.py::test_r390_an_ipv6_network_that_misbehaves_waits_as_one_address"),
        ("R390", "clients of SecAgg+ from each address of one IPv6 network",
         "trusted_aggregator/modes/secagg/test_limits.py::"
         "test_r390_clients_of_one_ipv6_network_have_the_seats_of_one_address"),
        ("R391", "calls under way on every connection of a listener", "transport/test_connections.py::"
         "test_r391_more_connections_with_calls_than_there_are_places_end_no_look"),
        ("R391", "descriptors used up", "transport/test_guard.py::"
         "test_r391_looks_that_fail_end_no_guard_and_are_logged_once"),
        ("R391", "more networks than the kernel has memory for", "transport/test_kernel_sockets.py::"
         "test_r391_a_filter_that_is_too_large_for_the_kernel_drops_those_with_the_longest_wait"),
    ],
    "control room": [
        ("R363", "silence inside a second request of a connection",
         "e2e/test_control_room.py::test_r363_silence_inside_a_second_request_ends_a_connection"),
        ("R363", "160 silent connections",
         "e2e/test_control_room.py::test_r363_connections_that_say_nothing_keep_no_newcomer_out"),
        ("R363", "a reader that does not read",
         "e2e/test_control_room.py::test_r363_a_reader_that_does_not_read_is_cut_off"),
        ("R406", "a program at another port of the host, which the owner visits",
         "e2e/test_control_room.py::test_r406_a_server_at_another_port_learns_neither_cookie_nor_folder"),
        ("R406", "a cookie without its folder, and a folder without its cookie", "dashboard/test_site.py::"
         "test_r406_the_folder_opens_nothing_without_the_cookie_nor_the_cookie_without_the_folder"),
        ("R363", "wrong tokens, sent by a web page through the owner's browser",
         "dashboard/test_site.py::test_r363_wrong_tokens_of_any_page_never_keep_the_right_one_out"),
    ],
    "probes and metrics": [
        ("R362", "connections that drip at the port of probes",
         "operations/test_metrics.py::test_r362_callers_that_drip_keep_no_probe_out"),
        ("R362", "one request that drips", "operations/test_metrics.py::"
         "test_r362_a_request_that_drips_ends_when_its_time_is_over"),
        ("R362", "a web page whose name resolves to the machine",
         "operations/test_metrics.py::test_r362_a_foreign_name_for_this_machine_is_refused"),
    ],
    "ended programs": [
        ("R253", "one of the programs of `odp up` killed",
         "operations/local/test_supervising.py::test_r253_a_killed_program_serves_again_where_it_was"),
        ("R253", "one that ends at every start",
         "operations/local/test_supervising.py::"
         "test_r253_each_start_comes_later_and_one_that_ends_again_and_again_is_given_up"),
    ],
    "clocks": [
        ("R439", "a clock that leaps while a host looks at evidence and logs",
         "device_runtime/host/test_pacing.py::test_r439_a_clock_that_leaps_for_a_while_ends_no_host"),
        ("R438", "evidence from a clock that leapt, in the log for good", "server/test_transparency.py::"
         "test_r438_evidence_from_a_clock_that_leapt_waits_and_fails_no_later_audit"),
        ("R397", "a device that starts in a leap with a report that has no answer", "device_runtime/round/"
         "test_local_reports.py::test_r397_a_report_without_an_answer_is_sent_again_after_a_leap_of_the_clock"),
        ("R397", "a report that was dated in a leap", "device_runtime/round/test_local_reports.py::"
         "test_r397_a_report_that_a_wrong_clock_dated_is_sent_again_by_the_process_that_made_it"),
        ("R397", "a server that starts in a leap, and a report that comes again", "server/test_local_desk.py::"
         "test_r397_a_server_that_starts_while_its_clock_is_ahead_counts_no_report_twice"),
        ("R378", "a leap of 400 days while a token-gated local task runs", "server/test_local_admission.py::"
         "test_r378_a_leap_of_the_clock_skips_no_period_of_a_token_gated_task"),
        ("R378", "starts of the server within a leap", "server/test_local_admission.py::"
         "test_r378_a_program_that_starts_again_and_again_in_a_leap_begins_one_period_at_most_each_time"),
        ("R378", "a database's clock that was set back", "server/test_leases.py::"
         "test_r378_a_lease_of_a_dead_server_ends_also_where_the_databases_clock_was_set_back"),
        ("R378", "a device's clock that was ahead at a report", "device_runtime/round/test_local_reports.py::"
         "test_r378_a_report_of_a_clock_that_was_ahead_holds_up_the_next_one_for_one_period"),
        ("R378", "the same at a contribution", "device_runtime/round/test_gate.py::"
         "test_r378_a_contribution_of_a_clock_that_was_ahead_keeps_no_device_waiting_for_that_time"),
        ("R378", "an issuer's clock that was ahead", "trust/enrolment/test_issuer.py::"
         "test_r378_tokens_of_a_clock_that_was_ahead_do_not_count_for_a_year"),
        ("R378", "a clock that was ahead at a training", "trainings/test_living_model.py::"
         "test_r378_a_training_that_began_by_a_clock_that_was_ahead_holds_up_the_next_one_for_one_period"),
        ("R379", "a clock set back while a host of SecAgg+ is down",
         "trusted_aggregator/modes/secagg/test_restarts.py::"
         "test_r379_a_clock_that_was_set_back_makes_no_stage_of_a_session_longer"),
        ("R289", "certificates made by a clock that was ahead", "security/test_certificates.py::"
         "test_r289_a_clock_that_was_ahead_when_certificates_were_made_ends_the_start_or_is_mended"),
        ("R289", "a clock set ahead by a year while an issuer prunes",
         "trust/enrolment/test_issuer.py::test_r289_a_clock_that_is_wrong_for_a_moment_ends_no_key"),
        ("R252", "the clock set back or ahead while a round is open",
         "server/test_driver.py::test_r252_a_clock_that_is_set_neither_holds_a_round_open_nor_closes_it_early"),
        ("R252", "the clock set while the server is away",
         "server/test_driver.py::"
         "test_r252_after_a_restart_a_round_waits_for_what_is_left_and_never_longer_than_its_time"),
        ("R252", "the clock set ahead by years before a sweep or a start",
         "security/test_quotas.py::test_r252_a_clock_that_is_wrong_for_a_moment_forgets_no_round"),
        ("R252", "the same, at a distributor",
         "distributor/test_retention.py::test_r252_a_clock_that_is_wrong_for_a_moment_forgets_no_model"),
    ],
    "randomizers": [
        ("R396", "devices of one host that draw at the same time",
         "privacy/test_random_source.py::test_r396_threads_that_share_a_source_never_draw_from_the_same_key"),
        ("R354", "reports that the opposite vector can never make, at a large epsilon",
         "privacy/test_privunit_support.py::test_r354_the_opposite_vector_can_make_every_answer"),
        ("R354", "the same on the cube",
         "privacy/test_privunit_support.py::test_r354_the_opposite_signs_can_make_every_answer"),
        ("R354", "what rounding before the grid tells", "privacy/test_privunit_support.py::"
         "test_r354_an_error_of_the_number_is_a_factor_of_every_probability"),
        ("R354", "improbable numbers of matches", "privacy/test_privunit_support.py::"
         "test_r354_each_number_of_matches_has_its_exact_probability"),
    ],
    "what a developer reads from private data": [
        ("R355", "a number of items or a scale that follows from the data", "research/simulation/test_tuning.py::"
         "test_r355_a_private_search_takes_no_fact_that_was_guessed_from_the_data_as_public"),
        ("R356", "a training that loses its randomizers or its noise on another platform",
         "research/interop/test_carried.py::test_r356_what_a_process_leaves_out_is_refused_by_name"),
    ],
    "files that somebody sent": [
        ("R357", "megabytes that unpack to gigabytes",
         "security/test_bombs.py::test_r357_a_small_file_of_much_memory_is_refused_before_it_is_unpacked"),
    ],
    "installation": [
        ("R353", "a text that has people install another's package",
         "security/test_install_lines.py::test_r353_no_tracked_text_installs_the_foreign_distribution"),
        ("R353", "another's package `odp`, installed before or after ODP", "test_packaging.py::"
         "test_r353_beside_the_other_distribution_the_command_is_one_error_and_runs_again_without_it"),
        ("R353", "another's package `odp` that hides ODP's",
         "_system/test_own_packages.py::test_r353_the_command_runs_no_code_of_another_package_named_odp"),
    ],
    "operation": [
        ("R384", "devices of SecAgg+ that all die after their vectors",
         "trusted_aggregator/modes/secagg/test_restarts.py::"
         "test_r384_a_round_whose_devices_die_after_their_vectors_uses_up_its_attempts"),
        ("R380", "audits beside a server that appends, or whose disk is full",
         "trust/log/test_audit.py::"
         "test_r380_an_audit_beside_a_server_that_appends_passes_at_every_moment"),
        ("R381", "a server's database that is two releases old",
         "server/test_driver.py::test_r381_a_server_whose_database_is_two_releases_old_says_what_is_missing"),
        ("R382", "an expired certificate of a chip",
         "server/test_driver.py::test_r382_a_round_says_that_the_certificate_of_the_aggregators_chip_ended"),
        ("R383", "a crafted backup with a chip of its own",
         "_system/files/test_backup.py::test_r383_a_backup_that_brings_a_chip_is_refused_and_changes_nothing"),
        ("R400", "an old version that a service manager starts again after a hand-over", "cli/test_upgrade.py::"
         "test_r400_a_version_that_did_not_take_the_state_over_leaves_it_where_it_is_and_names_the_one_that_did"),
        ("R402", "a charge for what came between the closing of a round and its charge",
         "trusted_aggregator/host/test_servicer.py::"
         "test_r402_what_comes_between_closing_and_charge_is_refused_under_a_signature_once_the_charge_is_in_force"),
        ("R402", "late contributions that fill the host's memory", "trusted_aggregator/host/test_servicer.py::"
         "test_r402_few_wait_for_a_charge_and_who_comes_beyond_them_is_answered_at_once"),
        ("R401", "a chip without its slots", "trust/enclave/test_platform.py::"
         "test_r401_a_platform_whose_slots_are_gone_is_refused_by_name_until_somebody_makes_the_folder"),
        ("R403", "a program of a deployment that takes all memory, or that is called before it takes calls",
         "operations/test_deploy.py::"
         "test_r403_every_program_of_a_deployment_has_probes_a_memory_limit_and_a_way_to_new_code"),
        ("R404", "an operator who does what a page says, and no more",
         "documentation/test_operators_pages.py::test_r404_the_pages_of_deployments_and_of_certificates_run_to_the_letter"),
        ("R386", "crashes, power cuts, clocks and disks under real services, at random",
         "faults/test_campaign.py::test_r386_three_trials_of_the_campaign_hold"),
        ("R386", "a device that dies before its session of SecAgg+ begins", "trusted_aggregator/modes/secagg/"
         "test_rounds.py::test_r386_a_client_that_died_before_its_session_began_takes_its_seat_again"),
        ("R386", "an advert of another one's identity", "trusted_aggregator/modes/secagg/"
         "test_rounds.py::test_r386_who_does_not_sign_for_an_identity_does_not_take_its_seat"),
        ("R395", "rounds of SecAgg+ that end although each device could go on",
         "faults/test_campaign.py::test_r395_a_round_without_a_sum_is_seen_where_every_device_could_still_contribute"),
        ("R395", "devices that are charged for less or more than what counted, and tasks that fail without a cause",
         "faults/test_campaign.py::test_r395_a_device_that_is_charged_for_less_or_more_than_it_counted_in_is_seen"),
        ("R377", "a full or broken disk at the second of two counters", "security/test_counters.py::"
         "test_r377_a_failed_write_of_a_counter_is_finished_by_a_later_call_and_advises_no_restore"),
    ],
    "images of enclaves": [
        ("R440", "a faster variant of a library, a zip beside the standard library, pyvenv.cfg, ld.so.preload, "
         "LD_PRELOAD, a provider of OpenSSL, at the start of an enclave", "security/test_enclave_image.py::"
         "test_r440_files_beside_the_real_ones_are_loaded_by_no_enclave_and_no_platform"),
        ("R440", "the same, on a kernel that can close no files", "security/test_enclave_image.py::"
         "test_r440_without_landlock_they_are_loaded_by_no_enclave_either"),
        ("R440", "pages that are no part of the image, or writable and executable", "security/test_enclave_image.py::"
         "test_r440_from_their_first_instruction_on_enclave_and_platform_map_their_images_alone"),
        ("R440", "/proc/PID/mem while an enclave starts", "security/test_enclave_image.py::"
         "test_r440_a_user_without_rights_builds_and_starts_the_same_image_and_cannot_open_its_memory"),
        ("R440", "a debugger of the platform, from before its image on", "security/test_enclave_image.py::"
         "test_r440_a_debugger_that_follows_the_platform_from_before_its_start_does_not_get_the_enclave"),
        ("R440", "writing into the file of an image while it is copied", "trust/enclave/test_image_running.py::"
         "test_r440_an_image_that_is_written_to_while_it_is_copied_starts_nothing_else"),
        ("R440", "a lack of descriptors at the moment when files are closed", "trust/enclave/test_image_running.py::"
         "test_r440_nothing_starts_with_open_files_where_closing_them_fails"),
        ("R440", "a changed byte in any kind of part", "trust/enclave/test_image_running.py::"
         "test_r440_a_damaged_image_is_refused_by_its_part_and_starts_nothing"),
        ("R441", "a second module of one name", "trust/enclave/test_image_parts.py::"
         "test_r441_a_second_part_that_an_import_could_find_is_refused"),
        ("R441", "flipped bits", "trust/enclave/test_image_parts.py::"
         "test_r441_a_flipped_bit_anywhere_is_another_digest_or_refused"),
        ("R441", "a library that changes between its import and its copy", "trust/enclave/test_image_building.py::"
         "test_r441_a_library_that_changes_between_its_import_and_its_copy_is_refused"),
        ("R441", "a module that lies elsewhere", "trust/enclave/test_image_building.py::"
         "test_r441_a_module_of_another_place_is_refused"),
        ("R441", "a compiled cache beside a source", "trust/enclave/test_image_building.py::"
         "test_r441_a_cache_beside_a_source_is_not_read"),
        ("R441", "files edited with their times set back, under a cached image", "trust/enclave/test_image_built.py::"
         "test_r441_an_image_of_files_that_were_changed_is_built_again"),
        ("R441", "damage to the cache", "trust/enclave/test_image_built.py::"
         "test_r441_a_damaged_cache_is_built_again"),
        ("R441", "modules that are no code, shown to a reviewer", "trust/enclave/test_image_listing.py::"
         "test_r441_a_module_that_is_no_code_is_refused_in_one_line"),
        ("R442", "another entry's image in place of the enclave's or the platform's, once the host has looked at it",
         "trust/enclave/test_image_running.py::"
         "test_r442_an_image_that_is_replaced_by_another_one_after_the_host_looked_at_it_is_refused"),
        ("R441", "the same files while an image is built", "security/test_enclave_image.py::"
         "test_r441_files_beside_the_real_ones_are_part_of_no_image_with_the_clean_digest"),
        ("R441", "changed libraries of the system", "security/test_enclave_image.py::"
         "test_r441_changed_libraries_of_the_system_change_the_digest_and_reach_no_image_that_was_built_before"),
    ],
    "decoders": [
        ("R45", "changed and arbitrary bytes", "security/test_fuzz.py::test_changed_inputs_crash_nothing"),
        ("R365", "numbers that make an algorithm divide by zero, in a task for a device host",
         "device_runtime/host/test_refused_answers.py::test_r365_a_task_with_hostile_numbers_ends_no_device_host"),
        ("R365", "what no check foresaw, in an answer for a device host",
         "device_runtime/host/test_refused_answers.py::test_r365_an_error_that_no_check_foresaw_ends_no_device_host"),
        ("R365", "data in the text of an unforeseen error",
         "security/test_refusals.py::test_r365_an_error_that_no_check_foresaw_is_a_refusal_without_its_text"),
        ("R365", "what no check foresaw, at each party",
         "security/test_refusals.py::test_r365_every_party_refuses_a_task_whatever_its_algorithm_raises"),
        ("R393", "a machine without memory or files, as a verdict on what it reads",
         "security/test_refusals.py::test_r393_a_machine_that_is_short_of_something_refuses_nothing"),
        ("R393", "the same, on a healthy log",
         "security/test_damaged_logs.py::test_r393_an_audit_on_a_machine_without_memory_is_no_verdict_on_the_log"),
        ("R393", "the same, on a task at a device host",
         "device_runtime/host/test_refused_answers.py::test_r393_a_device_host_without_memory_pauses_and_refuses_no_task"),
        ("R366", "special numbers, texts and bytes in up to three fields of any task", "security/test_refusals.py::"
         "test_r366_a_definition_with_hostile_fields_is_refused_by_name_or_accepted_everywhere"),
        ("R366", "extreme clips, rates, bounds and noises",
         "security/test_refusals.py::test_r366_no_extreme_number_of_any_training_makes_a_party_fail"),
        ("R367", "NaN, infinities and subnormals in fields that are not read", "security/test_refusals.py::"
         "test_r367_a_number_that_no_field_can_mean_is_refused_in_fields_that_are_not_read"),
        ("R368", "the largest tasks there can be, to take time and memory",
         "security/test_refusals.py::test_r368_the_largest_definitions_take_two_seconds_and_100_mib_to_judge"),
        ("R368", "many different sampled rounds, and a budget that is nearly used up",
         "security/test_refusals.py::test_r368_sampled_rounds_take_two_seconds_to_judge_wherever_the_budget_is"),
        ("R423", "the longest trees", "security/test_refusals.py::"
         "test_r423_the_longest_trees_take_two_seconds_to_judge"),
        ("R368", "the longest stream with masks",
         "security/test_refusals.py::test_r368_the_longest_stream_with_masks_is_judged_without_its_past_sums"),
        ("R369", "a record that no check of an audit foresaw",
         "security/test_damaged_logs.py::test_r369_an_error_that_no_check_foresaw_names_the_entry"),
        ("R369", "nonsense in a log that is signed anew", "security/test_damaged_logs.py::"
         "test_r369_an_entry_of_changed_bytes_in_a_log_that_is_signed_anew_is_named"),
        ("R369", "hostile fields in a release that an attested enclave signed", "security/test_damaged_logs.py::"
         "test_r369_a_release_with_hostile_fields_that_an_attested_enclave_signed_is_named"),
        ("R369", "damaged files of a log",
         "security/test_damaged_logs.py::test_r369_damage_to_any_file_of_a_log_is_named"),
        ("R45", "secrets in errors", "security/test_fuzz.py::test_errors_about_a_secret_are_a_closed_set_of_lines"),
        ("R8", "evidence", "trust/enclave/test_verifier_nonsense.py::test_any_change_to_a_genuine_token_is_refused"),
    ],
}  # fmt: skip

ROWS = [(surface, *row) for surface, rows in ATTACKS.items() for row in rows]


@pytest.mark.parametrize(
    ("surface", "threat", "attack", "test"), ROWS, ids=[f"{surface}: {attack}" for surface, _, attack, _ in ROWS]
)
def test_every_attack_has_a_test_and_its_threat_a_number(surface: str, threat: str, attack: str, test: str) -> None:
    path, name = test.split("::")
    source = (TESTS / path).read_text(encoding="utf-8")
    assert re.search(rf"^ *def {name}\(", source, re.MULTILINE), test
    assert f"**{threat}**" in THREAT_MODEL.read_text(encoding="utf-8"), threat


def test_every_file_of_this_folder_is_in_the_list() -> None:
    named = {test.split("::")[0] for *_, test in ROWS}
    own = {f"security/{path.name}" for path in Path(__file__).parent.glob("test_*.py")}
    # A file that keeps its own list says so here.
    assert own - named <= {"security/test_attack_list.py", "security/test_transparency_log.py"}


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name for bug in BUGS])
def test_every_planted_bug_fits_the_code_of_today_and_names_a_test(bug: Bug) -> None:
    planted = bug.planted((ROOT / bug.path).read_text(encoding="utf-8"))
    compile(planted, bug.path, "exec")
    path, *_, name = bug.test.split("::")
    assert re.search(rf"^ *def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), bug.test
    assert bug.guard in (path, "tests/security/test_attack_list.py")
    if bug.guard != path:
        assert f"{path.removeprefix('tests/')}::{name}" in {test for *_, test in ROWS}
