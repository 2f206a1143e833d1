# Sourced: lets the compiler use memory instead of time where there is enough of it. It spends a sixth of its time on collecting garbage.
# Tests and the programs under test are to run without it: go test -exec "env -u GOGC".
if [ -z "${GOGC:-}" ] && [ "$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo)" -ge $((3000000 * $(nproc))) ]; then export GOGC=400; fi
