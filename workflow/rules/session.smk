rule start_server:
    input:
        image=image_receipt,
        topology="results/{campaign}/receipts/probe_topology.json",
    output:
        "results/{campaign}/receipts/{leg}/start_server.json",
    log:
        "logs/{campaign}/{leg}/start_server.log",
    priority: order(6)
    conda:
        "../../envs/harness.yaml"
    threads: ALL_CORES
    resources:
        gpu=gpus,
    params:
        spec=spec("start_server"),
    message:
        "start_server: {wildcards.campaign} {wildcards.leg}"
    shell:
        'exec "$ASSAY_PYTHON" scripts/start_server.py --spec {params.spec:q} --output {output} > {log} 2>&1'


rule warm_up:
    input:
        image=image_receipt,
        topology="results/{campaign}/receipts/probe_topology.json",
    output:
        "results/{campaign}/receipts/{leg}/warm_up.json",
    log:
        "logs/{campaign}/{leg}/warm_up.log",
    priority: order(4)
    conda:
        "../../envs/harness.yaml"
    threads: ALL_CORES
    resources:
        gpu=gpus,
    params:
        spec=spec("warm_up"),
    message:
        "warm_up: {wildcards.campaign} {wildcards.leg}"
    shell:
        'exec "$ASSAY_PYTHON" scripts/warm_up.py --spec {params.spec:q} --output {output} > {log} 2>&1'


# Connected to every stage of the leg, so that a cluster runs a leg as one group job.
rule stop_server:
    input:
        load=load_receipts,
        before="results/{campaign}/receipts/{leg}/gate_before.json",
        after="results/{campaign}/receipts/{leg}/gate_after.json",
        started="results/{campaign}/receipts/{leg}/start_server.json",
        warm="results/{campaign}/receipts/{leg}/warm_up.json",
    output:
        "results/{campaign}/receipts/{leg}/stop_server.json",
    log:
        "logs/{campaign}/{leg}/stop_server.log",
    priority: order(1)
    conda:
        "../../envs/harness.yaml"
    threads: ALL_CORES
    resources:
        gpu=gpus,
    params:
        spec=spec("stop_server"),
    message:
        "stop_server: {wildcards.campaign} {wildcards.leg}"
    shell:
        'exec "$ASSAY_PYTHON" scripts/stop_server.py --spec {params.spec:q} --output {output} > {log} 2>&1'
