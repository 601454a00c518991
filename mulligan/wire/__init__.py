"""The JSON that travels between workflow, activities and clients. It is in histories: only optional fields are added."""
