checkpoint build_image:
    output:
        "results/{campaign}/receipts/images/{image}.json",
    log:
        "logs/{campaign}/build_image/{image}.log",
    message:
        "{wildcards.campaign}: build the image {wildcards.image}"
    params:
        spec=spec("build_image"),
    shell:
        'exec "$ASSAY_PYTHON" scripts/build_image.py --spec {params.spec:q} --output {output} > {log} 2>&1'


checkpoint prepare_prompts:
    output:
        prompts="results/{campaign}/prompts/{point}.jsonl",
        receipt="results/{campaign}/receipts/prompts/{point}.json",
    log:
        "logs/{campaign}/prepare_prompts/{point}.log",
    message:
        "{wildcards.campaign}: draw the prompts of {wildcards.point}"
    params:
        spec=spec("prepare_prompts"),
    shell:
        'exec "$ASSAY_PYTHON" scripts/prepare_prompts.py --spec {params.spec:q} --prompts {output.prompts} --output {output.receipt} > {log} 2>&1'
