"""Engines that run the calls elsewhere than in `gmi_drl.runtime.driver`, which is engine local."""
