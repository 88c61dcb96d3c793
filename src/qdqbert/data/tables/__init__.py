"""Read and write rows of files of any size: one file per format, without torch and transformers."""
