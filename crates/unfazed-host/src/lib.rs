//! What this machine is: cores, memory and their limits.
