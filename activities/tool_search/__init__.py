"""Tool search: the index of the tools that a model finds on demand, and what requests contain of them."""
