"""The networks included in this package: sequences of named blocks, cut only between blocks."""
