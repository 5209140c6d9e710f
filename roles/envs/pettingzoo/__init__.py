"""Steps PettingZoo's environments, of several agents, as batches."""
