package packed

import "embed"

// assets contains coracle-buildbarn-check for this architecture, compressed with zstd (RFC 8878), if it was built.
//
//go:embed all:assets/amd64
var assets embed.FS
