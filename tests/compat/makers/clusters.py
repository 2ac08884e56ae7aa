"""Clusters of copper and aluminium with energies and forces: input of `mace_run_train`."""

import numpy as np
from ase import Atoms
from ase.calculators.emt import EMT
from ase.io import write

generator = np.random.default_rng(1)
corners = np.array([[x, y, z] for x in range(2) for y in range(2) for z in range(2)])
clusters = []
for _ in range(112):
    symbols = generator.choice(["Cu", "Al"], 8)
    atoms = Atoms(symbols, 2.6 * corners + generator.normal(0, 0.15, (8, 3)))
    atoms.calc = EMT()
    atoms.info["REF_energy"] = atoms.get_potential_energy()
    atoms.arrays["REF_forces"] = atoms.get_forces()
    atoms.calc = None
    clusters.append(atoms)
write("train.xyz", clusters[:100], format="extxyz")
write("valid.xyz", clusters[100:], format="extxyz")
