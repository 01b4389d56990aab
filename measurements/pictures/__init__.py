"""Plots in the README."""
