"""Records who ran what in the global control store (GCS), and replicates it by chains."""
