package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// MaxBytes bounds the total size of one part's files, as Kubernetes bounds a ConfigMap.
const MaxBytes = 1 << 20

// Mounted is the directory where the programs of parts with TLS find their certificates.
const Mounted = "/tls/"

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

// Check returns the files that the programs read: the main files and their imports. An error names the file, the line
// and the fault, for users. Check evaluates nothing: it checks that strings, comments and brackets are closed, and
// that the imported files exist. pkg/systems/buildbarn/check does the rest.
func Check(all map[string]string, mains []Main) (map[string]string, error) {
	used := map[string]string{}
	read := map[reference]bool{}
	var queue []reference
	for _, m := range mains {
		queue = append(queue, reference{file: m.File})
	}
	total := 0
	for len(queue) > 0 {
		next := queue[0]
		name := next.file
		queue = queue[1:]
		if read[next] {
			continue
		}
		read[next] = true
		text, ok := all[name]
		if !ok {
			return nil, fmt.Errorf("the file %s is missing; there are: %s", name, listed(all))
		}
		if total += len(text); total > MaxBytes {
			return nil, fmt.Errorf("the files are larger than %d bytes together", MaxBytes)
		}
		used[name] = text
		if next.text {
			continue
		}
		imports, err := scan(text)
		if err != nil {
			return nil, fmt.Errorf("%s:%w", name, err)
		}
		for _, i := range imports {
			if i.text && strings.HasPrefix(i.file, Mounted) {
				continue // a file of a Secret, which is not read
			}
			// A mounted ConfigMap has no directories.
			i.file = strings.TrimPrefix(strings.TrimPrefix(i.file, "/config/"), "./")
			if _, ok := all[i.file]; !ok {
				return nil, fmt.Errorf("%s imports %s, which is missing; there are: %s", name, i.file, listed(all))
			}
			queue = append(queue, i)
		}
	}
	return used, nil
}

func listed(all map[string]string) string {
	if len(all) == 0 {
		return "none"
	}
	names := slices.Sorted(maps.Keys(all))
	if len(names) > 10 {
		names = append(names[:10], "...")
	}
	return strings.Join(names, ", ")
}

// Hash returns a name for a set of files. It does not depend on their order.
func Hash(files map[string]string) string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(h, "%d:%s%d:%s", len(name), name, len(files[name]), files[name])
	}
	return hex.EncodeToString(h.Sum(nil))[:10]
}

var errText = errors.New("1: is not text (UTF-8)")

func isText(s string) bool { return utf8.ValidString(s) && !strings.ContainsRune(s, 0) }
