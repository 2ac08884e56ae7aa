"""Triples of a small family of relations: input of `pykeen train`."""

import random

pick = random.Random(1)
rows = {(f"e{a}", f"r{r}", f"e{(a * (r + 2) + r) % 150}") for a in range(150) for r in range(14)}
rows = sorted(rows)
pick.shuffle(rows)
with open("triples.tsv", "w") as file:
    file.writelines("\t".join(row) + "\n" for row in rows[:2000])
