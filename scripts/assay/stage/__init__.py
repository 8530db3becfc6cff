"""The stages of a campaign: each rule's script calls one function here.

A stage gets what it needs (a lease, prompts), measures, and leaves a record in the evidence and a receipt.
"""
