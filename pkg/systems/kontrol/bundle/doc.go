// Package bundle reads the objects of a Bundle from documents, archives and directories.
//
// Its invariant: time and memory are limited for any input, and no file outside the directory or archive is read.
package bundle

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	kontrol "github.com/coracle-dev/coracle/apis/kontrol/v1alpha1"
)

// Limits of the input.
const (
	// MaxBytes limits the size of all files with documents together, and MaxFiles their number. MaxEntries limits the
	// entries of an archive or directory, with or without documents.
	MaxBytes   = 8 << 20
	MaxFiles   = 1000
	MaxEntries = 10_000
	// maxName limits the name of a file in an archive, in bytes.
	maxName = 512
)

// File is a file with YAML or JSON documents.
type File struct {
	Name string
	Data []byte
}

// Object is an object of a Bundle.
type Object struct {
	kontrol.Target
	Wave int
	// JSON is the object without status.
	JSON []byte
	// From is the name of its file.
	From string
}

// Key identifies an object in a Bundle by its group, kind, namespace and name, without the version.
func (o *Object) Key() string {
	group, _, found := strings.Cut(o.APIVersion, "/")
	if !found {
		group = ""
	}
	return strings.Join([]string{group, o.Kind, o.Namespace, o.Name}, "/")
}

// Sort orders objects by wave and, within a wave, definitions and namespaces first.
func Sort(list []Object) {
	slices.SortStableFunc(list, func(a, b Object) int {
		return cmp.Or(cmp.Compare(a.Wave, b.Wave), cmp.Compare(rank(a.Kind), rank(b.Kind)), strings.Compare(a.Key(), b.Key()))
	})
}

func rank(kind string) int {
	switch kind {
	case "CustomResourceDefinition":
		return 0
	case "Namespace":
		return 1
	}
	return 2
}

// Digest returns a hash of everything that determines a Bundle's Resources: the objects, overrides, mode, ignored
// fields, deletion policy and windows.
func Digest(list []Object, s *kontrol.BundleSpec) string {
	h := sha256.New()
	for i := range list {
		fmt.Fprintf(h, "%d %d\n", list[i].Wave, len(list[i].JSON))
		_, _ = h.Write(list[i].JSON)
	}
	rest, _ := json.Marshal([]any{s.Overrides, s.Mode, s.Ignore, s.DeletionPolicy}) // they were validated
	_, _ = h.Write(rest)
	if len(s.Windows) > 0 {
		windows, _ := json.Marshal(s.Windows)
		_, _ = h.Write(windows)
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)[:16])
}
