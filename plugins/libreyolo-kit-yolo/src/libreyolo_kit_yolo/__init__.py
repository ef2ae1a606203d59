"""Building blocks that several YOLO families share. No family lives here.

blocks   convolutional blocks with the state-dict names of the field        necks    path aggregation
grids    cell grids, flattening of level maps                               boxes    decoding and overlaps
assign   static-shaped pieces of dense assigners                            simota   SimOTA and its loss
"""

__version__ = "0.1.0"
