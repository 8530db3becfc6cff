checkpoint build_image:
    output:
        "results/{campaign}/receipts/images/{image}.json",
    log:
        "logs/{campaign}/build_image/{image}.log",
    conda:
        "../../envs/harness.yaml"
    params:
        spec=spec("build_image"),
    message:
        "build_image: {wildcards.campaign} {wildcards.image}"
    shell:
        'exec "$ASSAY_PYTHON" scripts/build_image.py --spec {params.spec:q} --output {output} > {log} 2>&1'


checkpoint prepare_prompts:
    output:
        prompts="results/{campaign}/prompts/{point}.jsonl",
        receipt="results/{campaign}/receipts/prompts/{point}.json",
    log:
        "logs/{campaign}/prepare_prompts/{point}.log",
    conda:
        "../../envs/harness.yaml"
    params:
        spec=spec("prepare_prompts"),
    message:
        "prepare_prompts: {wildcards.campaign} {wildcards.point}"
    shell:
        'exec "$ASSAY_PYTHON" scripts/prepare_prompts.py --spec {params.spec:q} --prompts {output.prompts} --output {output.receipt} > {log} 2>&1'
