"""Ratings in RecBole's own format (atomic files): input of `run_recbole`."""

import random
from pathlib import Path

pick = random.Random(1)
lines = ["user_id:token\titem_id:token\trating:float\ttimestamp:float"]
for user in range(80):
    taste = pick.randrange(6)
    for time in range(10):
        item = pick.randrange(20) * 6 + taste
        lines.append(f"u{user}\ti{item}\t{pick.randrange(1, 6)}\t{time}")
Path("ratings").mkdir(exist_ok=True)
Path("ratings/ratings.inter").write_text("\n".join(lines) + "\n")
