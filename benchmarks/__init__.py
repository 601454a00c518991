"""Speed and size, measured: each file is one command. Figures are ratios within one run on one machine."""
