package containerd

import "embed"

// assets contains the compressed coracle-shim (zstd, RFC 8878) for this architecture, if it was built.
//
//go:embed all:assets/amd64
var assets embed.FS
