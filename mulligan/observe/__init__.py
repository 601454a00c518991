"""Traces and metrics: their names, their definitions, and their export by OTLP."""
