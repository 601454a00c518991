"""Random inputs for each parser and entrance: a few seconds in the tests, as long as wanted with `make fuzz`."""
