"""Steps environments as batched tensor code: any device, no Python loop over environments."""
