"""Steps MuJoCo's tasks, Gymnasium's and two more robots, as batches; only `vec` needs torch."""
