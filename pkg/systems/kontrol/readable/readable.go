// Package readable limits the namespaces from which Clusters and Bundles may read Secrets and ConfigMaps.
//
// Its invariant: a refusal names the remedy.
package readable

import (
	"fmt"
	"slices"
	"strings"
)

// Namespaces lists the namespaces whose Secrets and ConfigMaps are read. If it is empty, all are.
type Namespaces []string

// Check returns an error if the namespace is not read. kind and name are for its text.
func (n Namespaces) Check(kind, namespace, name string) error {
	if len(n) == 0 || slices.Contains(n, namespace) {
		return nil
	}
	return fmt.Errorf("%s %s is in namespace %s, but this operator reads only from %s: move it there, or add the "+
		"namespace to --source-namespaces", kind, name, namespace, strings.Join(n, ", "))
}
