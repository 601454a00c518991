"""The labels of results that others may have written, and the calls that such results must not decide."""
