"""Runs under torchrun: training whose result depends on code, image, data, seed and samples consumed alone."""
