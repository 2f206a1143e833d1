package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
)

// Main is the main file of a program.
type Main struct {
	// File is its name. Program reads it: scheduler, storage, worker, runner or browser.
	File, Program string
}

// Mains returns the main files of a component; instance is the instance name of workers. Frontends run the program of
// storage.
func Mains(component, instance string) []Main {
	switch component {
	case "worker":
		return []Main{{Worker(instance), "worker"}, {Runner(instance), "runner"}}
	case "frontend":
		return []Main{{Frontend, "storage"}}
	}
	return []Main{{component + ".jsonnet", component}}
}

// Used returns the rendered files that the programs read: the main files and, with TLS, the authorities.
func Used(files map[string]string, mains []Main) map[string]string {
	used := map[string]string{}
	for _, m := range mains {
		used[m.File] = files[m.File]
	}
	if text, ok := files[Authorities]; ok {
		used[Authorities] = text
	}
	return used
}

// Hash returns a name for a set of files. It does not depend on their order.
func Hash(files map[string]string) string {
	sum := Sum(files)
	return hex.EncodeToString(sum[:])[:10]
}

// Sum returns the whole hash of a set of files.
func Sum(files map[string]string) (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(h, "%d:%s%d:%s", len(name), name, len(files[name]), files[name])
	}
	h.Sum(sum[:0])
	return sum
}
