"""`python -m mulligan`: the same as the command `mulligan`."""

from mulligan.cli.app import main

main()
