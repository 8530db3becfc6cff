"""Mechanisms of the simulated node: what must come out of scheduling and cost, with nothing typed in."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.rehearsal.counters import metrics_text
from assay.rehearsal.node import Node
from assay.rehearsal.offline import Ask, ClosedLoop, Served, output_tok_s, percentile
from assay.rehearsal.profile import Profile, read_profile
from assay.rehearsal.published import PROFILES, compare, draw_asks, read_cases
from assay.rehearsal.recipe import Recipe
from assay.rehearsal.sequence import Sequence

ROOT = Path(__file__).resolve().parents[3]
CHAT = {"workload": "chat", "concurrency": 0, "prompt_median": 90, "prompt_sigma": 1.1, "max_tokens": 256}
SMALL = Profile(
    step_fixed_s=0.01,
    token_s=0.0002,
    prefill_token_s=0.00002,
    acceptance_text=(0.8, 0.7, 0.6),
    acceptance_random=(0.2,),
)


@pytest.fixture(scope="module")
def native() -> Profile:
    return read_profile(ROOT / PROFILES / "dsv41_native_tp4.yaml", ROOT)


def quad(**values: object) -> Recipe:
    return Recipe(**{"gpus_per_replica": 4, "max_num_seqs": 32, **values})  # type: ignore[arg-type]


def run(profile: Profile, recipe: Recipe, asks: list[Ask], concurrency: int, **how: float) -> list[Served]:
    return ClosedLoop(profile, recipe).run(asks, concurrency, **how)  # type: ignore[arg-type]


def ttft_p50_ms(served: list[Served]) -> float:
    return percentile([item.ttft_ms for item in served], 50)


def synthetic(count: int, n_prompt: int = 1024, n_output: int = 256) -> list[Ask]:
    return [Ask(n_prompt, n_output, seed, is_random=True) for seed in range(count)]


def test_too_few_slots_wait_seconds_for_the_first_token(native: Profile) -> None:
    """At concurrency 64 one replica with 32 slots lets half of the requests wait for a whole generation, two
    replicas with 64 slots none, and the time per token hardly differs."""
    one = run(native, quad(), synthetic(128), 64)
    two = run(native, quad(replicas=2), synthetic(128), 64)
    assert ttft_p50_ms(one) > 3_000
    assert ttft_p50_ms(two) < 0.4 * ttft_p50_ms(one)
    tpot = [percentile([item.tpot_ms for item in served], 50) for served in (one, two)]
    assert 0.8 < tpot[0] / tpot[1] < 1.25
    assert output_tok_s(two) > 1.6 * output_tok_s(one)


def test_slots_alone_end_the_wait(native: Profile) -> None:
    """The same replica with 64 slots instead of 32 starts chats at concurrency 64 without the long wait."""
    asks = draw_asks(CHAT, native, 192)
    few, many = (run(native, quad(max_num_seqs=slots), asks, 64) for slots in (32, 64))
    assert ttft_p50_ms(few) > 4 * ttft_p50_ms(many)


def test_speculation_helps_most_at_concurrency_one(native: Profile) -> None:
    """The gain of five draft tokens is largest with one request, and smaller once verification fills steps."""
    gains = {}
    for concurrency, count in ((1, 8), (16, 32), (64, 256)):
        asks = draw_asks(CHAT, native, count)
        rates = [
            output_tok_s(run(native, quad(replicas=2, draft_tokens=k), asks, concurrency)) for k in (5, 0)
        ]
        gains[concurrency] = rates[0] / rates[1]
    assert gains[1] > 1.8
    assert gains[1] > 1.2 * max(gains[16], gains[64])
    assert min(gains.values()) > 1.0


def test_speculation_is_slightly_slower_at_250k_random_tokens(native: Profile) -> None:
    """With a prompt of 250K random tokens next to no draft is accepted, and the draft head reads the prompt
    too: the first token comes later and the rate is a little lower."""
    base, drafted = (
        run(native, quad(replicas=2, max_model_len=262_144, draft_tokens=k), synthetic(2, 250_000), 1)
        for k in (0, 5)
    )
    assert 0.85 < output_tok_s(drafted) / output_tok_s(base) < 1.0
    assert 1.0 < ttft_p50_ms(drafted) / ttft_p50_ms(base) < 1.1


def test_more_slots_and_speculation_change_the_soak(native: Profile) -> None:
    """At concurrency 128, 64 slots with three draft tokens start within a second and give more; 64 slots in
    total without speculation make requests wait for a slot."""
    asks = draw_asks(CHAT, native, 256)
    base = run(native, quad(replicas=2), asks, 128, duration_s=60)
    drafted = run(native, quad(replicas=2, max_num_seqs=64, draft_tokens=3), asks, 128, duration_s=60)
    assert percentile([item.ttft_ms for item in base], 99) > 3_000
    assert percentile([item.ttft_ms for item in drafted], 99) < 2_000
    assert output_tok_s(drafted) > 1.5 * output_tok_s(base)


@pytest.mark.parametrize("campaign", ["dsv41_32k", "dsv41_fp8_rescue", "glm_sglang", "spark_served_rate"])
def test_published_figures_come_out_near(campaign: str) -> None:
    """The rates, latencies and capacities of the smaller rounds come out of the fitted profiles within a third,
    and most of them within a tenth: a changed mechanism that loses them has to be fitted anew."""
    figures = compare(ROOT, cases=[case for case in read_cases(ROOT) if case.campaign == campaign])
    assert figures
    assert all(0.67 < figure.ratio < 1.5 for figure in figures), figures
    assert sum(0.9 < figure.ratio < 1.12 for figure in figures) > len(figures) / 2


def test_graphs_help_one_request_and_not_sixteen() -> None:
    """An eager step is bound by the host, so graphs help while the GPU's part is shorter than the host's."""
    profile = read_profile(ROOT / PROFILES / "dsv41_fp8_tp8.yaml", ROOT)
    gain = {}
    for concurrency in (1, 16):
        eager, graphs = (
            output_tok_s(
                run(profile, Recipe(gpus_per_replica=8, eager=eager), synthetic(2 * concurrency), concurrency)
            )
            for eager in (True, False)
        )
        gain[concurrency] = graphs / eager
    assert gain[1] > 3
    assert 0.8 < gain[16] < 1.3


def test_prefill_apart_waits_long_and_then_streams_fast() -> None:
    """One eager prefill engine queues requests for many seconds where two replicas take them at once; once
    output has started, tokens come faster without prefills in between."""
    profile = read_profile(ROOT / PROFILES / "glm53_flash_tp4.yaml", ROOT)
    apart = quad(max_num_seqs=512, prefill_replicas=1, prefill_eager=True, draft_tokens=3)
    together = quad(max_num_seqs=512, replicas=2, draft_tokens=3)
    asks = synthetic(512, 1024, 256)
    split, replicas = (run(profile, recipe, asks, 256) for recipe in (apart, together))
    assert ttft_p50_ms(split) > 10_000
    assert ttft_p50_ms(replicas) < 2_000
    assert output_tok_s(replicas) > 1.3 * output_tok_s(split)


def test_kv_capacity_queues_and_preempts() -> None:
    """A KV cache for three of eight sequences lets the others wait, throws back those that outgrow it, and
    still serves every token of all."""
    roomy = run(SMALL, Recipe(max_num_seqs=8), synthetic(8, 512, 256), 8)
    loop = ClosedLoop(SMALL, Recipe(max_num_seqs=8, kv_capacity_tokens=2_000))
    tight = loop.run(synthetic(8, 512, 256), 8)
    replica = loop.node.replicas[0]
    assert len(tight) == 8
    assert replica.counts.generated_tokens == 8 * 256
    assert replica.counts.preemptions > 0
    assert ttft_p50_ms(tight) > 5 * ttft_p50_ms(roomy)
    assert replica.kv.n_free == replica.kv.n_blocks


def test_prefix_cache_lowers_first_token_and_shows_in_counters() -> None:
    """A prompt that begins like an earlier one is not computed again, when prefix caching is on."""
    hashes = tuple(range(256))
    asks = [Ask(4_100, 16, seed, block_hashes=hashes) for seed in range(6)]
    served, hits = {}, {}
    for caching in (False, True):
        loop = ClosedLoop(SMALL, Recipe(prefix_caching=caching))
        served[caching] = [item.ttft_ms for item in loop.run(asks, 1)]
        hits[caching] = loop.node.replicas[0].counts.prefix_hits
    assert served[True][0] == served[False][0]
    assert served[True][1] < 0.5 * served[False][1]
    assert hits == {False: 0, True: 5 * 4_096}


def test_least_loaded_router_keeps_replicas_even() -> None:
    """Requests go to the replica that has fewest."""
    node = Node(SMALL, Recipe(replicas=3, max_num_seqs=4), lambda *_: None)
    for seed in range(9):
        node.submit(Sequence(64, 8, seed=seed), 0.0)
    assert [replica.load for replica in node.replicas] == [3, 3, 3]


def test_same_seeds_give_the_same_times() -> None:
    """Two runs of the same requests in the same order agree in every simulated time; another seed does not."""
    asks = [Ask(100 + 7 * seed, 64, seed) for seed in range(40)]
    recipe = Recipe(max_num_seqs=4, replicas=2, draft_tokens=3)
    first, second = (run(SMALL, recipe, asks, 16) for _ in range(2))
    assert first == second
    other = run(SMALL, recipe, [Ask(a.n_prompt, a.n_output, a.seed + 1_000) for a in asks], 16)
    assert [item.t_end_s for item in other] != [item.t_end_s for item in first]


def test_acceptance_is_what_the_profile_says() -> None:
    """Over many drafts, the share accepted at each place is the chain of the profile's probabilities."""
    loop = ClosedLoop(SMALL, Recipe(draft_tokens=3))
    loop.run([Ask(10, 3_000, 5)], 1)
    counts = loop.node.replicas[0].counts
    shares = [n / counts.drafts for n in counts.accepted_at]
    assert shares == pytest.approx([0.8, 0.56, 0.336], abs=0.06)


def test_cancelled_requests_leave_nothing_behind() -> None:
    """A request whose client went away frees its slot and its blocks, waiting, prefilling or decoding."""
    node = Node(SMALL, Recipe(max_num_seqs=2, max_num_batched_tokens=256), lambda *_: None)
    sequences = [Sequence(1_000, 50, seed=seed) for seed in range(4)]
    for sequence in sequences:
        node.submit(sequence, 0.0)
    node.advance(0.05)
    for sequence in sequences:
        node.cancel(sequence)
    node.advance(60.0)
    replica = node.replicas[0]
    assert (node.n_running, node.n_waiting) == (0, 0)
    assert replica.kv.n_free == replica.kv.n_blocks
    assert node.next_time_s() is None


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 600), st.integers(1, 60), st.integers(0, 3)), min_size=1, max_size=25),
    st.integers(1, 8),
    st.integers(0, 4),
    st.sampled_from([700, 1_600, 100_000]),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_every_request_gets_all_its_tokens(
    shapes: list[tuple[int, int, int]], slots: int, draft: int, capacity: int, caching: bool, seed: int
) -> None:
    """Whatever the lengths, slots, drafts, memory and cache: each request gets exactly its tokens, in order
    of time, never more run than slots, and at the end all memory is free."""
    shuffled = random.Random(seed)
    got: dict[int, int] = {}
    last_s = 0.0

    def deliver(sequence: Sequence, n_new: int, t_s: float, done: bool) -> None:
        nonlocal last_s
        assert t_s >= last_s
        assert n_new >= 1
        last_s = t_s
        got[sequence.tag] = got.get(sequence.tag, 0) + n_new
        assert len(node.replicas[0].running) <= slots
        assert done == (got[sequence.tag] == sequence.n_output)

    recipe = Recipe(
        max_num_seqs=slots,
        max_num_batched_tokens=128,
        kv_capacity_tokens=capacity,
        draft_tokens=draft,
        prefix_caching=caching,
    )
    node = Node(SMALL, recipe, deliver)
    sent = []
    for number, (n_prompt, n_output, family) in enumerate(shapes):
        hashes = [family * 1_000 + block for block in range(n_prompt // 16)]
        sequence = Sequence(n_prompt, n_output, seed=number, block_hashes=hashes, tag=number)
        if not node.fits(sequence):
            continue
        node.advance(node.now_s + shuffled.random() * 0.05)
        node.submit(sequence, node.now_s)
        sent.append(sequence)
    while (time := node.next_time_s()) is not None:
        node.advance(time)
    assert got == {sequence.tag: sequence.n_output for sequence in sent}
    kv = node.replicas[0].kv
    assert kv.n_free == kv.n_blocks


def test_the_gauges_hold_every_request_of_a_split() -> None:
    """Running and waiting add up to what is in flight, also while prompts are on their way between engines."""
    profile = SMALL.with_values({"handoff_s": 5.0})
    node = Node(profile, quad(prefill_replicas=1), lambda *_: None)
    for seed in range(4):
        node.submit(Sequence(100, 8, seed=seed, is_random=True, block_hashes=[], tag=None), 0.0)
    seen = []
    for t_s in (0.001, 2.0, 4.9):
        node.advance(t_s)
        text = metrics_text(node, "m", {}, {})
        lines = [line for line in text.splitlines() if line.startswith("vllm:num_requests_")]
        seen.append(sum(float(line.rsplit(" ", 1)[1]) for line in lines))
    assert seen == [4.0, 4.0, 4.0]
    assert node.n_handed_over == 4
