"""The networks this package brings along: sequences of named blocks, cut only between blocks."""
