// Package boot tells boots of the machine apart.
package boot

import (
	"strings"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// ID identifies the current boot. Mounts, namespaces and processes do not survive it.
func ID() string {
	data, err := bounded.File("/proc/sys/kernel/random/boot_id", 128)
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(data))
}
