"""Server counters out of Prometheus text."""

from __future__ import annotations

import pytest

from assay.metrics import prometheus

VLLM = """
# HELP vllm:generation_tokens_total g
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{engine="0",model_name="m"} 10
vllm:generation_tokens_total{engine="1",model_name="m"} 5
# TYPE vllm:generation_tokens_created gauge
vllm:generation_tokens_created{engine="0"} 1.7e9
# TYPE vllm:request_success_total counter
vllm:request_success_total{finished_reason="stop"} 2
vllm:request_success_total{finished_reason="length"} 1
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0"} 3
vllm:num_requests_running{engine="1"} 4
vllm:num_requests_waiting{engine="0"} 1
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{le="+Inf"} 3
vllm:time_to_first_token_seconds_count 3
"""


def test_label_sets_are_summed_by_exact_name() -> None:
    """A counter over two engines is their sum; `_created` is no counter; a longer name is another one."""
    samples = prometheus.parse(VLLM)
    assert samples["vllm:generation_tokens_total"] == 15
    assert "vllm:generation_tokens_created" not in samples
    assert "vllm:generation_tokens" not in samples
    normalised = prometheus.normalise(samples)
    assert (normalised["generation_tokens"], normalised["requests_ok"]) == (15, 3)
    assert normalised["draft_tokens"] is None
    assert prometheus.gauges(samples) == {"running": 7, "waiting": 1}


@pytest.mark.parametrize(
    ("text", "engine", "expected"),
    [
        ("sglang:prompt_tokens_total 5\nsglang:num_running_reqs 2\nsglang:num_queue_reqs 0\n", "sglang", 5),
        (
            "llamacpp:prompt_tokens_total 6\nllamacpp:requests_processing 2\nllamacpp:requests_deferred 0\n",
            "llamacpp",
            6,
        ),
        ("vllm:prompt_tokens_total 7\nvllm:num_requests_running 2\nvllm:num_requests_waiting 0\n", "vllm", 7),
    ],
)
def test_each_engine_by_its_own_names(text: str, engine: str, expected: float) -> None:
    """The engine is told by its names, and its counters and gauges come under the shared ones."""
    samples = prometheus.parse(text)
    assert prometheus.engine_of(samples) == engine
    assert prometheus.normalise(samples)["prompt_tokens"] == expected
    assert prometheus.gauges(samples) == {"running": 2, "waiting": 0}


def test_unknown_text_is_unknown_not_zero() -> None:
    """Without an engine's names every counter is None."""
    samples = prometheus.parse("process_cpu_seconds_total 5\n")
    assert prometheus.engine_of(samples) is None
    assert set(prometheus.normalise(samples).values()) == {None}


def test_a_sample_that_is_no_number_spoils_its_sum() -> None:
    """NaN in one label set makes the whole name unknown: the rest would be too little."""
    assert "a_total" not in prometheus.parse('a_total{x="1"} NaN\na_total{x="2"} 4\n')


def test_growth_restart_and_absence() -> None:
    """A counter that went down has no growth but a reason; so has one that is absent, before or after."""
    growth, reasons = prometheus.delta(
        {"a": 1.0, "b": 5.0, "c": None, "d": 1.0}, {"a": 4.0, "b": 2.0, "c": 3.0, "d": None, "e": None}
    )
    assert growth == {"a": 3.0, "b": None, "c": None, "d": None, "e": None}
    assert reasons == {"b": "restart", "c": "absent before", "d": "absent", "e": "absent"}


def test_one_fallen_counter_spoils_them_all() -> None:
    """After a restart a counter that happens to be higher says nothing: its growth is null too."""
    record = prometheus.counters_record(
        {"t_ns": 0, "metrics": {"a": 100.0, "b": 5.0}}, {"t_ns": 1, "metrics": {"a": 3.0, "b": 9.0}}, []
    )
    assert record["delta"] == {"a": None, "b": None}
    assert record["reasons"] == {"a": "restart", "b": "restart"}


def test_replicas_are_summed_and_one_without_a_name_leaves_it_unknown() -> None:
    """Sums over replicas need the name in each; no replica at all is no zero."""
    assert prometheus.add([{"a": 1.0, "b": 2.0}, {"a": 3.0}]) == {"a": 4.0}
    assert prometheus.add([]) == {}


def test_garbage_is_an_error() -> None:
    """Text in another format raises, it does not parse to nothing."""
    with pytest.raises(ValueError, match=r".+"):
        prometheus.parse('<html>{"not": metrics')


@pytest.mark.parametrize("text", ['a{a="1", ="2"} 1', "a 1 1" + "0" * 400])
def test_a_malformed_line_is_an_error_like_any_other(text: str) -> None:
    """A label without a name, or a time beyond every number, raises ValueError."""
    with pytest.raises(ValueError, match="malformed"):
        prometheus.parse(text)


def test_a_sum_beyond_every_number_is_unknown() -> None:
    """Counters whose sum, or that themselves, are more than a float holds are absent."""
    assert prometheus.parse("a 1" + "0" * 400 + "\n") == {}
    assert prometheus.parse('a{x="1"} 1.7e308\na{x="2"} 1.7e308\nb 1\n') == {"b": 1}
