"""Finds hyper-parameters by HyperBand or PBT: `gmi-drl search`."""
