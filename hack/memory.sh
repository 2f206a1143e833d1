# Sourced: trades memory for time if enough memory is available, because the compiler spends a sixth of its time on
# garbage collection. Run tests and the programs under test without it: go test -exec "env -u GOGC".
if [ -z "${GOGC:-}" ] && [ "$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo)" -ge $((3000000 * $(nproc))) ]; then export GOGC=400; fi
