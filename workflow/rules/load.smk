rule run_finite:
    input:
        image=image_receipt,
        topology="results/{campaign}/receipts/probe_topology.json",
        prompts="results/{campaign}/prompts/{point}.jsonl",
    output:
        "results/{campaign}/receipts/{leg}/finite/{point}/r{repeat}.json",
    log:
        "logs/{campaign}/{leg}/run_finite/{point}.r{repeat}.log",
    priority: order(3)
    conda:
        "../../envs/harness.yaml"
    threads: ALL_CORES
    resources:
        gpu=gpus,
    params:
        spec=spec("run_finite"),
    message:
        "run_finite: {wildcards.campaign} {wildcards.leg} {wildcards.point} r{wildcards.repeat}"
    shell:
        'exec "$ASSAY_PYTHON" scripts/run_finite.py --spec {params.spec:q} --output {output} > {log} 2>&1'


rule run_sustained:
    input:
        image=image_receipt,
        topology="results/{campaign}/receipts/probe_topology.json",
        prompts="results/{campaign}/prompts/{point}.jsonl",
    output:
        "results/{campaign}/receipts/{leg}/sustained/{point}.json",
    log:
        "logs/{campaign}/{leg}/run_sustained/{point}.log",
    priority: order(3)
    conda:
        "../../envs/harness.yaml"
    threads: ALL_CORES
    resources:
        gpu=gpus,
    params:
        spec=spec("run_sustained"),
    message:
        "run_sustained: {wildcards.campaign} {wildcards.leg} {wildcards.point}"
    shell:
        'exec "$ASSAY_PYTHON" scripts/run_sustained.py --spec {params.spec:q} --output {output} > {log} 2>&1'
