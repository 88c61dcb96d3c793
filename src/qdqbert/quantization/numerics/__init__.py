"""Pure tensor maths: scales, zero points, codes, histograms and range search."""
