"""Constants and units in cgs. This module imports nothing, so that the command line starts quickly."""

# As the headers of simulation codes round them.
PARSEC, SOLAR_MASS, KM_PER_S = 3.085678e18, 1.989e33, 1e5
GRAVITY = 6.6743e-8  # CODATA 2018
HUBBLE = 1e7 / 3.0856775814913673e24  # 100 km/s per Mpc (IAU 2015)
CRITICAL_DENSITY = 2.77536627e11  # today, in Msun/h per (Mpc/h)^3
PROGRAM_BYTES = 500 << 20  # memory of Python, JAX and compiled searches
