"""How the search goes on: the model's series, a sampler's proposals, values in fresh processes."""
