"""Runs on a cluster of others: sent there, watched and stopped through Ray's job submission API.

    job.yaml ──▶ checked here ──▶ package.py: its folder as one archive ──▶ submission.py: words, place ──▶ cluster.py ──▶ Ray
                                                                                                             autotune run job.yaml
    autotune jobs · logs · stop ◀────────────────────────── runs.py ◀──────────────────────────────────────── Ray

What is sent is the command that a user would type there; the cluster needs autotune and what the
job needs, nothing else.
"""
