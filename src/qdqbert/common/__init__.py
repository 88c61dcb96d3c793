"""What every room uses: errors, files, options and this machine."""
