// Command pack compresses a file with zstd (RFC 8878) for embedding: pack FROM TO.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
)

func main() {
	if len(os.Args) != 3 {
		fail(fmt.Errorf("usage: pack FROM TO"))
	}
	raw, err := os.ReadFile(os.Args[1])
	if err != nil {
		fail(err)
	}
	w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
	if err != nil {
		fail(err)
	}
	if err := os.MkdirAll(filepath.Dir(os.Args[2]), 0o755); err != nil {
		fail(err)
	}
	// A half-written file of a killed build would be newer than its sources. Beside TO it would be embedded too.
	temp := os.Args[1] + ".zst"
	if err := os.WriteFile(temp, w.EncodeAll(raw, nil), 0o644); err != nil {
		fail(err)
	}
	if err := os.Rename(temp, os.Args[2]); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "pack:", err)
	os.Exit(1)
}
