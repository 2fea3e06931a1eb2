"""The notebook weak-scaling: samples per second on 1 to 40 workers, beside those that Baidu published in 2017."""
