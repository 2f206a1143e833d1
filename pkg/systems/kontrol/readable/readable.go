// Package readable says in which namespaces the Secrets and ConfigMaps are read that Clusters and Bundles name.
//
// Its invariant: what is not read is refused with what to do.
package readable

import (
	"fmt"
	"slices"
	"strings"
)

// Namespaces are those whose Secrets and ConfigMaps are read; without any all are.
type Namespaces []string

// Check returns an error if an object of a kind is in a namespace that is not read.
func (n Namespaces) Check(kind, namespace, name string) error {
	if len(n) == 0 || slices.Contains(n, namespace) {
		return nil
	}
	return fmt.Errorf("%s %s in namespace %s is not read: this operator reads those of %s alone. Move it there, or add "+
		"the namespace to --source-namespaces",
		kind, name, namespace, strings.Join(n, ", "))
}
