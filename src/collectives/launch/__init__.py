"""Where ranks live: so far on this machine (`loopback`)."""
