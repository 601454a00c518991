"""One provider, one file. A model is spelled `provider:NAME`; what a provider must do stands in `protocol.py`."""
