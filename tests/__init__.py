"""The tests. Their modules are compiled once, and those that they import: so this is called before any other import."""

from tests.support.bytecode_cache import keep_bytecode

keep_bytecode()
