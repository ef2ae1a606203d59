"""Building blocks that several YOLO families share. No family lives here.

blocks   convolutional blocks with the state-dict names of the field        necks    path aggregation
elan     ELAN layers, re-parameterised convolutions, strided layers         grids    cell grids, flattened level maps
boxes    decoding and overlaps                                              dfl      box sides as distributions
assign   static-shaped pieces of dense assigners                            simota   SimOTA and its loss
tal      task-aligned assignment and its loss
"""

__version__ = "0.1.0"
