"""SMILES with a property computed from them: input of `chemprop train`."""

import random

from rdkit import Chem
from rdkit.Chem import Descriptors

pick = random.Random(1)
lines = ["smiles,logp"]
while len(lines) <= 500:
    smiles = "".join(
        pick.choice(["C", "C", "N", "O", "CC", "C(C)", "C(=O)", "c1ccccc1"])
        for _ in range(pick.randrange(3, 9))
    )
    molecule = Chem.MolFromSmiles(smiles)
    if molecule is not None:
        lines.append(f"{smiles},{Descriptors.MolLogP(molecule):.4f}")
with open("molecules.csv", "w") as file:
    file.write("\n".join(lines) + "\n")
