"""Load tests of a host inside the image that trains: copies between GPUs and collectives, every byte verified.

It measures and verifies; it judges nothing (`orchestrate preflight --active` does) and runs only when asked.
"""
