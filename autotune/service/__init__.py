"""Runs on a remote cluster: sent, watched and stopped through Ray's job submission API.

    job.yaml ──▶ checked here ──▶ job/package.py: its folder as one archive ──▶ submission.py: words, place ──▶ cluster.py ──▶ Ray
                                                                                                                 autotune run job.yaml
    autotune jobs · logs · stop ◀────────────────────────────── runs.py ◀──────────────────────────────────────── Ray

The command sent is the one a user would type there; the cluster needs only autotune and what the
job needs.
"""
